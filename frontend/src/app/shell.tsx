import { Button, Menu } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Fragment, useEffect, useRef } from "react";
import { Link, Navigate, NavLink, Outlet, ScrollRestoration, useLocation } from "react-router";

import { sessionQuery } from "@/api/session";
import { AccountMenu } from "@/app/account-menu";
import { InboxLink } from "@/app/inbox-link";
import { groupOf, groupsFor } from "@/app/navigation";
import { LoadingPage } from "@/app/outcome-pages";
import { FurnaceMark } from "@/components/icons";
import { ProblemNotice } from "@/components/problem-notice";

import classes from "./shell.module.css";

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
  const groups = groupsFor(session.data);
  const current = groupOf(groups, location.pathname);
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
          <nav aria-label="Groups of sections" className={classes.groups}>
            {groups.map((group) => (
              <Link
                key={group.name}
                to={group.sections[0]?.to ?? "/"}
                className={classes.group}
                aria-current={group.name === current?.name ? "true" : undefined}
              >
                {group.name}
              </Link>
            ))}
          </nav>
          <div className={classes.narrow}>
            <Menu position="bottom-start" width={220}>
              <Menu.Target>
                <Button variant="default" size="compact-md">
                  Menu
                </Button>
              </Menu.Target>
              <Menu.Dropdown>
                {groups.map((group) => (
                  <Fragment key={group.name}>
                    <Menu.Label>{group.name}</Menu.Label>
                    {group.sections.map((section) => (
                      <Menu.Item key={section.to} component={NavLink} to={section.to}>
                        {section.name}
                      </Menu.Item>
                    ))}
                  </Fragment>
                ))}
              </Menu.Dropdown>
            </Menu>
          </div>
          <InboxLink />
          <AccountMenu user={user} teams={session.data.teams} />
        </div>
        {current ? (
          <nav aria-label={`Sections of ${current.name}`} className={classes.sections}>
            {current.sections.map((section) => (
              <NavLink key={section.to} to={section.to} className={classes.section ?? ""}>
                {section.name}
              </NavLink>
            ))}
          </nav>
        ) : null}
      </header>
      <main id="main" ref={main} tabIndex={-1} className={classes.main}>
        <Outlet />
      </main>
      <ScrollRestoration getKey={({ pathname }) => pathname} />
    </>
  );
}
