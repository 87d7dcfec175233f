import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { Navigate, NavLink, Outlet, ScrollRestoration, useLocation } from "react-router";

import { sessionQuery } from "@/api/session";
import { AccountMenu } from "@/app/account-menu";
import { LoadingPage } from "@/app/outcome-pages";
import { FurnaceMark } from "@/components/icons";
import { ProblemNotice } from "@/components/problem-notice";

import classes from "./shell.module.css";

const SECTIONS = [
  { to: "/jobs", name: "Jobs" },
  { to: "/queue", name: "Queue" },
  { to: "/datasets", name: "Datasets" },
  { to: "/tokens", name: "Tokens" },
  { to: "/team", name: "Team" },
  { to: "/quotas", name: "Quotas" },
  { to: "/budgets", name: "Budgets" },
  { to: "/clusters", name: "Clusters" },
];
/** Of a team, and its administrators' business only. */
const TEAM_SECTIONS = [{ to: "/webhooks", name: "Webhooks" }];
/** Of those, and of the platform's administrators and auditors. */
const AUDIT_SECTION = { to: "/audit", name: "Audit" };
/** Of the platform's administrators and auditors. */
const SIMULATOR_SECTION = { to: "/simulator", name: "Simulator" };

// For platform administrators; the server refuses it to everybody else.
const PLATFORM_SECTIONS = [{ to: "/operations", name: "Operations" }];

/** The frame of every page behind the sign-in. */
export function Shell() {
  const session = useQuery(sessionQuery());
  const location = useLocation();
  const main = useRef<HTMLElement>(null);
  const arrived = useRef(location.pathname);

  // A reader of the screen hears the new page, as after a full page load.
  useEffect(() => {
    if (arrived.current !== location.pathname) main.current?.focus({ preventScroll: true });
    arrived.current = location.pathname;
  }, [location.pathname]);

  if (session.isPending) return <LoadingPage />;
  if (session.data === undefined) {
    return (
      <div className={classes.failure}>
        <ProblemNotice error={session.error} onRetry={() => void session.refetch()} />
      </div>
    );
  }
  const user = session.data.user;
  if (!session.data.authenticated || user === null) {
    const next = location.pathname + location.search;
    return <Navigate to={`/sign-in?next=${encodeURIComponent(next)}`} replace />;
  }
  if (session.data.second_factor_setup_required && location.pathname !== "/account") {
    return <Navigate to="/account" replace />;
  }
  const managesATeam = session.data.teams.some((team) => team.role === "admin");
  const sections = [
    ...SECTIONS,
    ...(managesATeam ? TEAM_SECTIONS : []),
    ...(managesATeam || user.platform_role !== "none" ? [AUDIT_SECTION] : []),
    ...(user.platform_role !== "none" ? [SIMULATOR_SECTION] : []),
    ...(user.platform_role === "platform_admin" ? PLATFORM_SECTIONS : []),
  ];
  return (
    <>
      <a href="#main" className={classes.skip}>
        Skip to content
      </a>
      <header className={classes.header}>
        <div className={classes.bar}>
          <NavLink to="/jobs" end className={classes.brand ?? ""} aria-label="Athanor, to the jobs">
            <FurnaceMark />
            <span className={classes.word}>athanor</span>
          </NavLink>
          <nav aria-label="Sections" className={classes.sections}>
            {sections.map((section) => (
              <NavLink key={section.to} to={section.to} className={classes.section ?? ""}>
                {section.name}
              </NavLink>
            ))}
          </nav>
          <AccountMenu user={user} teams={session.data.teams} />
        </div>
      </header>
      <main id="main" ref={main} tabIndex={-1} className={classes.main}>
        <Outlet />
      </main>
      <ScrollRestoration getKey={({ pathname }) => pathname} />
    </>
  );
}
