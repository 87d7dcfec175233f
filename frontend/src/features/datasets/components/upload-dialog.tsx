import { Button, Checkbox, FileInput, Group, Modal, NativeSelect, Stack, Text, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { skipToken, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { datasetsKey, inspectionQuery, prepareDataset, uploadDataset } from "@/api/datasets";
import type { Dataset, Inspection, Team } from "@/api/types";
import { Notice } from "@/components/notice";
import { ProblemNotice } from "@/components/problem-notice";
import { Rows } from "@/features/datasets/components/rows";
import { CHOICES, formatLabel, isForPreferenceTraining, labelOf } from "@/features/datasets/lib/formats";
import { bytes, count } from "@/lib/format";

interface UploadDialogProps {
  opened: boolean;
  teams: Team[];
  /** The data sets that there are. */
  known: Dataset[];
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

/** Whether a job can tokenise it with the defaults; conversations need the template of the model to be fine-tuned. */
function isTokenisedByDefault(found: Inspection): boolean {
  return found.format !== "chat" && !isForPreferenceTraining(found.format);
}

export function UploadDialog({ opened, teams, known, onClose }: UploadDialogProps) {
  const [file, setFile] = useState<File | null>(null);
  const [name, setName] = useState("");
  const [team, setTeam] = useState("");
  const [format, setFormat] = useState("auto");
  const [chosenField, setChosenField] = useState("");
  const [prepares, setPrepares] = useState<boolean | null>(null);
  const [isNewVersion, setIsNewVersion] = useState(false);
  const client = useQueryClient();
  const inspection = useQuery(file ? inspectionQuery(file, format) : { queryKey: ["inspection"], queryFn: skipToken });
  const found = inspection.data;
  const prepare = useMutation({
    mutationFn: prepareDataset,
    onSettled: () => client.invalidateQueries({ queryKey: datasetsKey }),
    onError: (error) =>
      notifications.show({ message: `Tokenising was not started: ${error.message}`, color: "red", autoClose: false }),
  });
  const isPrepared = prepares ?? (found !== undefined && isTokenisedByDefault(found));
  const upload = useMutation({
    mutationFn: uploadDataset,
    onSuccess: (dataset) => {
      void client.invalidateQueries({ queryKey: datasetsKey });
      notifications.show({ message: `${labelOf(dataset)} is uploaded.`, color: "teal" });
      if (isPrepared) prepare.mutate(dataset);
      close();
    },
  });
  const close = () => {
    upload.reset();
    setFile(null);
    setName("");
    setFormat("auto");
    setChosenField("");
    setPrepares(null);
    setIsNewVersion(false);
    onClose();
  };
  const owner = team || (teams[0]?.name ?? "");
  const fields = found && ["jsonl", "parquet"].includes(found.format) ? found.fields_with_text : null;
  const textField = chosenField || found?.text_field || "";
  const taken = known.find((one) => one.name === name && one.team.name === owner);
  const isNameFree = taken === undefined || isNewVersion;
  const isComplete = found !== undefined && name !== "" && isNameFree && (fields === null || textField !== "");
  return (
    <Modal opened={opened} onClose={close} title="Upload a data set" centered size="lg">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (file && isComplete) {
            // The detected format: what was shown is what is stored.
            upload.mutate({
              file,
              name,
              format: found.format,
              textField: fields ? textField : "",
              team: owner,
              isNewVersion: taken !== undefined,
            });
          }
        }}
      >
        <Stack>
          <FileInput
            label="File"
            placeholder="Text or JSON lines in UTF-8, or parquet"
            accept=".txt,.jsonl,.ndjson,.json,.parquet,.pq,.md,.text,text/plain"
            value={file}
            clearable
            required
            withAsterisk={false}
            description={file ? bytes(file.size) : "Choose a file"}
            onChange={(chosen) => {
              setFile(chosen);
              setChosenField("");
              upload.reset();
              if (chosen && name === "") setName(nameFrom(chosen.name));
            }}
          />
          <NativeSelect
            label="Format"
            data={CHOICES}
            value={format}
            description={found ? `Found: ${formatLabel(found.format)}` : undefined}
            onChange={(event) => {
              setFormat(event.currentTarget.value);
              setChosenField("");
            }}
          />
          {inspection.error ? <ProblemNotice error={inspection.error} /> : null}
          {fields && fields.length > 0 ? (
            <NativeSelect
              label="Field with the text"
              data={[...(textField ? [] : [{ value: "", label: "Choose a field" }]), ...fields]}
              value={textField}
              required
              withAsterisk={false}
              onChange={(event) => setChosenField(event.currentTarget.value)}
            />
          ) : null}
          {fields?.length === 0 ? (
            <Notice tone="bad" title="No field has text">
              <p>Training reads text from one field of each line or row. Write the text to one, for example `text`.</p>
            </Notice>
          ) : null}
          {found?.note ? (
            <Notice tone="waiting">
              <p>{found.note}</p>
            </Notice>
          ) : null}
          {found ? <Sample found={found} /> : null}
          <TextInput
            label="Name"
            value={name}
            onChange={(event) => setName(event.currentTarget.value)}
            pattern="[A-Za-z0-9][A-Za-z0-9._\-]{0,99}"
            title="Letters, digits, dot, hyphen and underscore; the first a letter or digit"
            required
            withAsterisk={false}
          />
          {taken ? (
            <Checkbox
              label={`Add a version to ${name}`}
              description={`The newest version is ${taken.version}. Specs with dataset:${name} read the new one from now on.`}
              checked={isNewVersion}
              onChange={(event) => setIsNewVersion(event.currentTarget.checked)}
            />
          ) : null}
          {found && !isForPreferenceTraining(found.format) ? (
            <Checkbox
              label="Tokenise it now"
              description={
                found.format === "chat"
                  ? "Without it, the first job that trains on it uses the chat template and tokenizer of its model, which " +
                    "is right for fine-tuning. Now: a new tokenizer, for training from scratch."
                  : "By a job of its own, with a new tokenizer; otherwise by the first job that trains on it."
              }
              checked={isPrepared}
              onChange={(event) => setPrepares(event.currentTarget.checked)}
            />
          ) : null}
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
              Cancel
            </Button>
            <Button type="submit" loading={upload.isPending} disabled={!isComplete}>
              Upload
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

function Sample({ found }: { found: Inspection }) {
  if (found.format === "parquet") {
    return (
      <Text size="sm" c="dimmed">
        {found.documents === null ? "Rows are shown after the upload." : `${count(found.documents)} rows.`}
      </Text>
    );
  }
  return (
    <div>
      <Text size="sm" fw={500}>
        First rows
      </Text>
      <Rows rows={found.rows} messagesField={found.format === "chat" ? found.text_field : ""} />
    </div>
  );
}
