import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useRef } from "react";
import { useNavigate } from "react-router";

import { forkJob, jobKeys, submitJob } from "@/api/jobs";
import type { Job, JsonObject } from "@/api/types";
import { mergePatch } from "@/lib/merge-patch";
import { uniqueKey } from "@/lib/unique-key";

function send(spec: JsonObject, key: string, parent: Job | undefined): Promise<Job> {
  const changes = parent ? mergePatch(parent.spec, spec) : null;
  return parent && changes ? forkJob(parent.id, changes, key) : submitJob(spec, key);
}

/**
 * One key per content of the form: a double click, or another try after a lost answer, gives the same job,
 * while a corrected spec is a new request.
 */
export function useSubmit(parent: Job | undefined) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const sent = useRef({ content: "", key: "" });
  return useMutation({
    mutationFn: (spec: JsonObject) => {
      const content = JSON.stringify(spec);
      if (sent.current.content !== content) sent.current = { content, key: uniqueKey() };
      return send(spec, sent.current.key, parent);
    },
    onSuccess: (job) => {
      client.setQueryData(jobKeys.detail(job.id), job);
      void client.invalidateQueries({ queryKey: jobKeys.lists });
      void navigate(`/jobs/${job.id}`);
    },
  });
}
