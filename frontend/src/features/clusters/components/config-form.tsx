import { Button, Group, Stack, Text } from "@mantine/core";
import { useMutation } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { useMemo, useState } from "react";

import { Problem } from "@/api/problem";
import type { JsonObject } from "@/api/types";
import { CodeEditor } from "@/components/code-editor";
import { Notice } from "@/components/notice";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { checkConfig } from "@/features/clusters/api/clusters";
import { FindingsTable } from "@/features/clusters/components/findings-table";
import { SchemaFields } from "@/features/clusters/components/schema-fields";
import { configRemarks, parseConfig, setConfigField } from "@/features/clusters/lib/config-yaml";
import { fieldsOf } from "@/features/clusters/lib/schema-form";

import classes from "./config-form.module.css";

interface ConfigFormProps {
  /** Of the cluster; empty while it has none. */
  name: string;
  kind: string;
  /** JSON Schema of the configuration; null while it is not known: then there is the YAML alone. */
  schema: JsonObject | null;
  start: string;
  /** Above the fields. */
  children?: ReactNode;
  /** What saving is called here. */
  yes: string;
  busy: boolean;
  error: unknown;
  onSave: (config: JsonObject) => void;
  onEdit: () => void;
}

/** A configuration as fields and as YAML, two views of one text, with what the server says of it, and a dry run. */
export function ConfigForm({ name, kind, schema, start, children, yes, busy, error, onSave, onEdit }: ConfigFormProps) {
  const [text, setText] = useState(start);
  const parsed = parseConfig(text);
  const check = useMutation({ mutationFn: (config: JsonObject) => checkConfig(name, kind, config) });
  const edit = (next: string) => {
    setText(next);
    check.reset();
    onEdit();
  };
  const failure = check.error ?? error;
  const fields = failure instanceof Problem ? failure.fields : [];
  const config = parsed.spec;
  const schemaFields = useMemo(() => (schema === null ? [] : fieldsOf(schema)), [schema]);
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        if (config !== null) onSave(config);
      }}
    >
      <Stack gap="lg">
        {children}
        <div className={schema === null ? undefined : classes.columns}>
          {schema === null ? null : (
            <Panel title="Configuration">
              <fieldset className={classes.fields} disabled={config === null}>
                <SchemaFields
                  fields={schemaFields}
                  value={config ?? {}}
                  path={[]}
                  problems={fields}
                  change={(path, value) => edit(setConfigField(text, path, value))}
                />
              </fieldset>
            </Panel>
          )}
          <Panel title="YAML" flush>
            <CodeEditor
              value={text}
              label="Configuration as YAML"
              onChange={edit}
              remarks={[...parsed.remarks, ...configRemarks(text, fields)]}
              minHeight={220}
              maxHeight={560}
            />
          </Panel>
        </div>
        <Text size="sm" c="dimmed">
          It holds no secrets, commands or paths of the server: name files of <code>ATHANOR_CLUSTER_CONFIG_DIR</code>. The
          server&apos;s operator sets the rest in <code>{name || "NAME"}.cluster.json</code> there.
        </Text>
        {failure ? <ProblemNotice error={failure} /> : null}
        {check.data ? (
          <>
            <Notice
              tone={check.data.usable === false ? "bad" : "good"}
              title={
                check.data.usable === null
                  ? "The configuration is valid. Clusters of this kind have no health check."
                  : check.data.usable
                    ? `Jobs can run there. ${check.data.version}`
                    : "Jobs cannot run there."
              }
              urgent
            />
            {check.data.findings.length > 0 ? (
              <Panel flush>
                <FindingsTable findings={check.data.findings} />
              </Panel>
            ) : null}
          </>
        ) : null}
        <Group justify="flex-end">
          <Button
            variant="default"
            loading={check.isPending}
            disabled={config === null}
            onClick={() => {
              if (config !== null) check.mutate(config);
            }}
          >
            Test
          </Button>
          <Button type="submit" loading={busy} disabled={config === null}>
            {yes}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
