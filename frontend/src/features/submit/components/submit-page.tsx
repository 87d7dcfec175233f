import { useQuery } from "@tanstack/react-query";
import { useSearchParams } from "react-router";

import { jobQuery, presetsQuery } from "@/api/jobs";
import type { Job, Preset } from "@/api/types";
import { EmptyState } from "@/components/empty-state";
import { Page } from "@/components/page";
import { PageSkeleton } from "@/components/page-skeleton";
import { SubmitForm } from "@/features/submit/components/submit-form";
import { setField, toYaml } from "@/lib/spec-yaml";

function fits(preset: Preset): boolean {
  return Object.values(preset.fits).some(Boolean);
}

function nextName(name: string): string {
  const match = /^(.*)-fork(?:-(\d+))?$/.exec(name);
  if (!match) return `${name}-fork`;
  return `${match[1] ?? name}-fork-${Number(match[2] ?? 1) + 1}`;
}

function startText(presets: Preset[], wanted: string | null, parent: Job | undefined): string {
  if (parent) return setField(toYaml(parent.spec), ["name"], nextName(parent.name));
  const preset = presets.find((one) => one.name === wanted) ?? presets.find(fits) ?? presets[0];
  return preset?.spec_yaml ?? "version: 1\n";
}

/** Waits for what the form starts from, so that the form itself never has to cope with a late arrival. */
export function SubmitPage() {
  const [search] = useSearchParams();
  const fork = search.get("fork");
  const presets = useQuery(presetsQuery());
  const parent = useQuery({ ...jobQuery(fork ?? ""), enabled: fork !== null, refetchInterval: false });
  const title = fork === null ? "New job" : "Fork a job";
  const error = presets.error ?? parent.error;
  if (error || !presets.data || (fork !== null && !parent.data)) {
    const retry = () => void (presets.error ? presets.refetch() : parent.refetch());
    return <PageSkeleton title={title} error={error} onRetry={retry} />;
  }
  if (presets.data.items.length === 0 && fork === null) {
    return (
      <Page title={title}>
        <EmptyState title="This server has no presets">A job can still be submitted with the command line.</EmptyState>
      </Page>
    );
  }
  const lead = parent.data
    ? `From ${parent.data.name}: change what should differ, then submit it as a new job.`
    : "Start from a preset; the form and the YAML are two views of the same spec.";
  return (
    <Page title={title} lead={lead}>
      <SubmitForm
        key={fork ?? "new"}
        presets={presets.data.items}
        start={startText(presets.data.items, search.get("preset"), parent.data)}
        parent={parent.data}
      />
    </Page>
  );
}
