import { Button, Group, Modal, NativeSelect, NumberInput, SimpleGrid, Stack, Text, TextInput, Title } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { acceleratorsQuery } from "@/api/accelerators";
import { errorAt } from "@/api/problem";
import type { NodeChange, QuotaNode } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { UnitInput } from "@/components/unit-input";
import { changeQuotas, previewQuotas, quotaKeys } from "@/features/quotas/api/quotas";
import { GrantsEditor } from "@/features/quotas/components/grants-editor";
import { PreviewPanel } from "@/features/quotas/components/preview-panel";
import type { LimitName, NodeDraft } from "@/features/quotas/lib/draft";
import { changeOf, LIMITS, placesFor, toNumber } from "@/features/quotas/lib/draft";

interface NodeDialogProps {
  first: NodeDraft;
  nodes: QuotaNode[];
  onClose: () => void;
}

/** Edit a node. A change must be previewed before it is saved, and is refused if the tree has changed since. */
export function NodeDialog({ first, nodes, onClose }: NodeDialogProps) {
  const client = useQueryClient();
  const [draft, setDraft] = useState(first);
  const [unreadable, setUnreadable] = useState<Partial<Record<LimitName, boolean>>>({});
  const isReadable = !Object.values(unreadable).some(Boolean);
  const inPools = useQuery({ ...acceleratorsQuery(), staleTime: 0 }); // a cluster may just have been registered
  const inTree = nodes.flatMap((each) => each.grants.map((grant) => grant.accelerator));
  const preview = useMutation({ mutationFn: (change: NodeChange) => previewQuotas([change]) });
  const save = useMutation({
    mutationFn: ({ change, version }: { change: NodeChange; version: number }) => changeQuotas([change], version),
    onSuccess: onClose,
    onSettled: () => client.invalidateQueries({ queryKey: quotaKeys.all }),
  });
  const { node } = draft;
  const isTop = node !== null && node.parent === null;
  const edit = (part: Partial<NodeDraft>) => {
    setDraft({ ...draft, ...part });
    preview.reset();
    save.reset();
  };
  const problem = [save.error, preview.error].find((error) => error !== null) ?? null;
  const errorIn = (field: string) => errorAt(problem, `/changes/0/${field}`);
  const title = node === null ? "New group" : `${node.kind === "team" ? "Team" : "Quotas of"} ${node.name}`;
  const seen = preview.data;
  return (
    <Modal opened onClose={onClose} title={title} size="xl" centered>
      <Stack>
        <SimpleGrid cols={{ base: 1, sm: 3 }}>
          {node === null || node.kind === "group" ? (
            <TextInput
              label="Name"
              required
              value={draft.name}
              error={errorIn(node === null ? "node" : "name")}
              onChange={(event) => edit({ name: event.currentTarget.value })}
            />
          ) : null}
          {isTop ? null : (
            <NativeSelect
              label="Belongs to"
              value={draft.parent ?? ""}
              error={errorIn("parent")}
              data={placesFor(node, nodes).map((each) => ({ value: each.id, label: each.path }))}
              onChange={(event) => edit({ parent: event.currentTarget.value })}
            />
          )}
          {isTop ? null : (
            <NumberInput
              label="Weight"
              description="Share relative to its siblings"
              inputWrapperOrder={["label", "input", "description", "error"]}
              min={0}
              value={draft.weight}
              error={errorIn("weight")}
              onChange={(weight) => edit({ weight })}
            />
          )}
        </SimpleGrid>
        <GrantsEditor
          grants={draft.grants}
          known={[...new Set([...(inPools.data ?? []), ...inTree])]}
          isTop={isTop}
          errorAt={(accelerator, part) => errorIn(`grants/${accelerator}/${part}`)}
          onChange={(grants) => edit({ grants })}
        />
        <div>
          <Title order={3} size="sm">
            Limits
          </Title>
          <Text size="xs" c="dimmed">
            They apply to the node and everything below it. Empty: no limit.
          </Text>
        </div>
        <SimpleGrid cols={{ base: 2, sm: 3 }}>
          {LIMITS.map(({ name, label, unit }) =>
            unit ? (
              <UnitInput
                key={name}
                label={label}
                unit={unit}
                value={toNumber(draft.limits[name])}
                error={errorIn(name)}
                onValid={(valid) => setUnreadable({ ...unreadable, [name]: !valid })}
                onChange={(value) => edit({ limits: { ...draft.limits, [name]: value ?? "" } })}
              />
            ) : (
              <NumberInput
                key={name}
                label={label}
                min={0}
                thousandSeparator=" "
                allowDecimal={false}
                value={draft.limits[name]}
                error={errorIn(name)}
                onChange={(value) => edit({ limits: { ...draft.limits, [name]: value } })}
              />
            ),
          )}
        </SimpleGrid>
        {seen ? <PreviewPanel preview={seen} /> : null}
        {problem !== null ? <ProblemNotice error={problem} /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Back
          </Button>
          <Button
            variant={seen ? "default" : "filled"}
            loading={preview.isPending}
            disabled={!isReadable}
            onClick={() => preview.mutate(changeOf(draft))}
          >
            Preview
          </Button>
          <Button
            disabled={!seen || !isReadable || seen.differences.length === 0}
            loading={save.isPending}
            onClick={() => {
              if (seen) save.mutate({ change: changeOf(draft), version: seen.version });
            }}
          >
            Save
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}
