import { Button } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";

import { projectsQuery, teamKeys } from "@/api/teams";
import type { Project } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { DeleteButton } from "@/components/delete-button";
import { EmptyState } from "@/components/empty-state";
import { NameDialog } from "@/components/name-dialog";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { changeProject, createProject } from "@/features/team/api/team";
import { useNow } from "@/lib/use-now";

const DEFAULT_PROJECT = "default"; // takes jobs that name no project

interface ProjectsPanelProps {
  teamId: string;
  teamName: string;
  writes: boolean;
  manages: boolean;
}

export function ProjectsPanel({ teamId, teamName, writes, manages }: ProjectsPanelProps) {
  const client = useQueryClient();
  const projects = useQuery(projectsQuery(teamId, teamName));
  const now = useNow(true, 10_000);
  const change = useMutation({
    mutationFn: (project: Project) => changeProject(project.id, { archived: project.archived_at === null }),
    onSettled: () => client.invalidateQueries({ queryKey: teamKeys.of(teamId, "projects") }),
  });
  const columns: Column<Project>[] = [
    { name: "Name", cell: (project) => project.name },
    { name: "Jobs", end: true, cell: (project) => project.job_count },
    { name: "Active jobs", end: true, quiet: true, cell: (project) => project.live_job_count },
    { name: "Last job", quiet: true, cell: (project) => <TimeAgo time={project.last_submitted_at} now={now} /> },
    {
      name: "State",
      cell: (project) => (
        <Pill tone={project.archived_at === null ? "good" : "muted"}>
          {project.archived_at === null ? "Open" : "Archived"}
        </Pill>
      ),
    },
    ...(writes
      ? [
          {
            name: "(Archive)",
            end: true,
            cell: (project: Project) => (
              <>
                <Button size="compact-sm" variant="subtle" onClick={() => change.mutate(project)}>
                  {project.archived_at === null ? "Archive" : "Unarchive"}
                </Button>
                {manages && project.name !== DEFAULT_PROJECT ? (
                  <DeleteButton collection="projects" id={project.id} name={project.name} />
                ) : null}
              </>
            ),
          },
        ]
      : []),
  ];
  const [naming, { open, close }] = useDisclosure(false);
  const create = useMutation({
    mutationFn: (name: string) => createProject(teamName, name),
    onSuccess: close,
    onSettled: () => client.invalidateQueries({ queryKey: teamKeys.of(teamId, "projects") }),
  });
  const tools = writes ? (
    <Button size="compact-sm" variant="default" onClick={open}>
      New project
    </Button>
  ) : null;
  const problem = projects.error ?? change.error;
  return (
    <Panel title="Projects" tools={tools} flush>
      {problem ? <ProblemNotice error={problem} onRetry={() => void projects.refetch()} /> : null}
      {projects.data?.items.length === 0 ? (
        <EmptyState title="No projects yet">A project is created by the first job that uses it.</EmptyState>
      ) : null}
      {projects.data && projects.data.items.length > 0 ? (
        <DataTable label="Projects" rows={projects.data.items} columns={columns} rowKey={(row) => row.id} />
      ) : null}
      {naming ? (
        <NameDialog
          title="New project"
          description="A job names it in `project`"
          pattern="[A-Za-z0-9][A-Za-z0-9._\-]*"
          rule="Letters, digits, dot, hyphen and underscore; the first a letter or digit"
          maxLength={100}
          busy={create.isPending}
          error={create.error}
          onCreate={(name) => create.mutate(name)}
          onClose={() => {
            create.reset();
            close();
          }}
        />
      ) : null}
    </Panel>
  );
}
