import { Button, Text } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";

import type { SignIn } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { endOtherSignIns, endSignIn, signInsKey, signInsQuery } from "@/features/account/api/account";

export function SignInsPanel() {
  const client = useQueryClient();
  const signIns = useQuery(signInsQuery());
  const settled = () => client.invalidateQueries({ queryKey: signInsKey });
  const end = useMutation({ mutationFn: (signIn: SignIn) => endSignIn(signIn.id), onSettled: settled });
  const endOthers = useMutation({ mutationFn: endOtherSignIns, onSettled: settled });
  const columns: Column<SignIn>[] = [
    {
      name: "Browser",
      cell: (signIn) => (
        <Text size="sm" component="span">
          {signIn.browser || "Unknown"}
        </Text>
      ),
    },
    { name: "Address", quiet: true, cell: (signIn) => <span className="mono">{signIn.address}</span> },
    { name: "Signed in", quiet: true, cell: (signIn) => <Moment time={signIn.created_at} /> },
    {
      name: "(End)",
      end: true,
      cell: (signIn) =>
        signIn.current ? (
          <Pill tone="good">This session</Pill>
        ) : (
          <Button size="compact-sm" variant="subtle" color="red" onClick={() => end.mutate(signIn)}>
            Sign out
          </Button>
        ),
    },
  ];
  const problem = signIns.error ?? end.error ?? endOthers.error;
  const rows = signIns.data?.items ?? [];
  return (
    <Panel
      title="Sessions"
      flush
      tools={
        rows.length > 1 ? (
          <Button size="compact-sm" variant="default" loading={endOthers.isPending} onClick={() => endOthers.mutate()}>
            Sign out everywhere else
          </Button>
        ) : null
      }
    >
      {problem ? <ProblemNotice error={problem} onRetry={() => void signIns.refetch()} /> : null}
      {rows.length > 0 ? (
        <DataTable label="Sessions" rows={rows} columns={columns} rowKey={(signIn) => signIn.id} />
      ) : null}
    </Panel>
  );
}
