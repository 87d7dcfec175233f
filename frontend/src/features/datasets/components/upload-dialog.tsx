import { Anchor, Button, Checkbox, FileInput, Group, Modal, NativeSelect, Stack, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { datasetsKey, prepareDataset, uploadDataset } from "@/api/datasets";
import type { Team } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { bytes } from "@/lib/format";

const FORMATS = [
  { value: "auto", label: "By the file's name" },
  { value: "text", label: "Plain text" },
  { value: "jsonl", label: "JSON lines" },
  { value: "parquet", label: "Parquet" },
];

interface UploadDialogProps {
  opened: boolean;
  teams: Team[];
  onClose: () => void;
}

/** `My corpus (v2).txt` -> `My-corpus-v2`: what a data set may be called. */
function nameFrom(file: string): string {
  return file
    .replace(/\.[^.]*$/, "")
    .replace(/[^A-Za-z0-9._-]+/g, "-")
    .replace(/^[^A-Za-z0-9]+|-+$/g, "")
    .slice(0, 100);
}

export function UploadDialog({ opened, teams, onClose }: UploadDialogProps) {
  const [file, setFile] = useState<File | null>(null);
  const [name, setName] = useState("");
  const [team, setTeam] = useState("");
  const [format, setFormat] = useState("auto");
  const [prepares, setPrepares] = useState(true);
  const client = useQueryClient();
  const prepare = useMutation({
    mutationFn: prepareDataset,
    onSuccess: (job) => notifications.show({ message: <Anchor href={`/jobs/${job.id}`}>{job.name}</Anchor> }),
    onError: (error) => notifications.show({ message: `It is not tokenised: ${error.message}`, color: "red" }),
  });
  const upload = useMutation({
    mutationFn: uploadDataset,
    onSuccess: (dataset) => {
      void client.invalidateQueries({ queryKey: datasetsKey });
      notifications.show({ message: `${dataset.name} is uploaded.`, color: "teal" });
      if (prepares) prepare.mutate(dataset);
      close();
    },
  });
  const close = () => {
    upload.reset();
    setFile(null);
    setName("");
    onClose();
  };
  const owner = team || (teams[0]?.name ?? "");
  return (
    <Modal opened={opened} onClose={close} title="Upload a data set" centered>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (file) upload.mutate({ file, name, format, team: owner });
        }}
      >
        <Stack>
          <FileInput
            label="File"
            placeholder="Text or JSON lines in UTF-8, or parquet"
            accept=".txt,.jsonl,.ndjson,.parquet,.md,.text,text/plain"
            value={file}
            clearable
            required
            withAsterisk={false}
            description={file ? bytes(file.size) : "Choose a file"}
            onChange={(chosen) => {
              setFile(chosen);
              if (chosen && name === "") setName(nameFrom(chosen.name));
            }}
          />
          <TextInput
            label="Name"
            value={name}
            onChange={(event) => setName(event.currentTarget.value)}
            pattern="[A-Za-z0-9][A-Za-z0-9._\-]{0,99}"
            title="Letters, digits, dot, hyphen and underscore; the first a letter or digit"
            required
            withAsterisk={false}
          />
          <NativeSelect
            label="Format"
            data={FORMATS}
            value={format}
            onChange={(event) => setFormat(event.currentTarget.value)}
          />
          <Checkbox
            label="Tokenise it now"
            description="By a job of its own; otherwise by the first job that trains on it."
            checked={prepares}
            onChange={(event) => setPrepares(event.currentTarget.checked)}
          />
          {teams.length > 1 ? (
            <NativeSelect
              label="Team"
              data={teams.map((one) => one.name)}
              value={owner}
              onChange={(event) => setTeam(event.currentTarget.value)}
            />
          ) : null}
          {upload.error ? <ProblemNotice error={upload.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={close} disabled={upload.isPending}>
              Back
            </Button>
            <Button type="submit" loading={upload.isPending} disabled={file === null || name === ""}>
              Upload
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
