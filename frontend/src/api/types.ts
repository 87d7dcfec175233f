import type { components } from "@/api/schema.gen";

/** Short names for the generated shapes, and what the OpenAPI document leaves open said more exactly. */
type Schemas = components["schemas"];

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = Record<string, Json>;

interface Page<T> {
  items: T[];
  next_cursor: string | null;
}
export type { Page };

export type Session = Schemas["Session"];
export type User = Schemas["User"];
export type Team = Schemas["TeamRole"];

export type JobSummary = Schemas["JobSummary"];
export type JobStatus = JobSummary["status"];
export type Job = Omit<Schemas["Job"], "spec" | "resolved_spec"> & {
  spec: JsonObject;
  resolved_spec: JsonObject;
};
export type Timeline = Schemas["Timeline"];
export type SystemState = Schemas["System"];
export type Efficiency = Schemas["Efficiency"];
export type Energy = Schemas["Energy"];
export type Goodput = Schemas["Goodput"];
export type GoodputStatement = Schemas["GoodputStatement"];
export type UsageReport = Schemas["UsageReport"];
export type Timings = Schemas["Timings"];
export type FieldProblem = Schemas["FieldProblem"];
export type Plan = Omit<Schemas["Plan"], "resolved_spec"> & { resolved_spec: JsonObject };
export type Preset = Omit<Schemas["Preset"], "spec"> & { spec: JsonObject };

export type Progress = Schemas["Progress"];
export type JobEvent = Omit<Schemas["Event"], "data"> & { data: JsonObject };
export type EventPage = Omit<Schemas["EventPage"], "items"> & { items: JobEvent[] };
export type LogLine = Schemas["LogLine"];
export type LogPage = Schemas["LogPage"];

/** A value that was not finite comes as null. */
export type Series = Omit<Schemas["Series"], "values"> & { values: (number | null)[] };
export type Metrics = Omit<Schemas["Metrics"], "series"> & { series: Record<string, Series> };

export type TokenCounts = Schemas["TokenCounts"];

export type Curve = Schemas["Curve"];
export type JobCurves = Schemas["JobCurves"];
export type MetricsAnswer = Schemas["MetricsAnswer"];

export type Checkpoint = Schemas["Checkpoint"];
export type ActedCheckpoint = Schemas["ActedCheckpoint"];
export type Artifact = Schemas["Artifact"];
export type Profile = Schemas["Profile"];
export type SigningKey = Schemas["SigningKey"];
export type ReplayedSegment = Schemas["ReplayedSegment"];
export type ApiToken = Schemas["Token"];
export type SignIn = Schemas["SignIn"];
export type SecondFactors = Schemas["SecondFactors"];
export type Passkey = Schemas["Passkey"];
export type AppSetup = Schemas["AppSetup"];
export type RecoveryCodes = Schemas["NewRecoveryCodes"];
export type SecondFactorKind = NonNullable<Schemas["Session"]["second_factor"]>["kinds"][number];
export type NewToken = Schemas["NewToken"];
export type TokenRequest = Schemas["TokenRequestRequest"];
export type Role = Schemas["RoleEnum"];
export type Member = Schemas["Member"];
export type Invitation = Schemas["Invitation"];
export type Offer = Schemas["Offer"];
export type MadeInvitation = Schemas["MadeInvitation"];
export type ServiceAccount = Schemas["ServiceAccount"];
export type Secret = Schemas["Secret"];
export type NewSecret = Schemas["NewSecretRequest"];
export type Project = Schemas["Project"];
export type AuditEvent = Omit<Schemas["AuditEvent"], "before" | "after"> & { before: Json; after: Json };
export type Webhook = Schemas["Webhook"];
export type MadeWebhook = Schemas["MadeWebhook"];
export type NewWebhook = Schemas["NewWebhookRequest"];
export type WebhookChanges = Schemas["PatchedWebhookChangesRequest"];
export type AlertRule = Schemas["AlertRule"];
export type NewAlertRule = Schemas["NewAlertRuleRequest"];
export type AlertRuleChanges = Schemas["PatchedAlertRuleChangesRequest"];
export type Alert = Schemas["Alert"];
export type Notification = Schemas["Notification"];
export type NotificationPreferences = Schemas["Preference"];
export type NotificationPreferenceChanges = Schemas["PatchedPreferenceChangesRequest"];
export type Delivery = Schemas["Delivery"];
export type FullDelivery = Schemas["FullDelivery"];
export type BulkResult = Schemas["BulkResult"];
export type RegistryPreview = Schemas["RegistryPreview"];
export type RegisteredModel = Schemas["Model"];
export type ModelGrant = Schemas["ModelGrant"];
export type ModelVersion = Schemas["Version"];
export type Comparison = Schemas["Comparison"];
export type ComparedResult = Schemas["ComparedResult"];
export type ModelAlias = Schemas["Alias"];
export type Lineage = Schemas["Lineage"];
export type LineageNode = Schemas["LineageNode"];
export type LineageEdge = Schemas["LineageEdge"];
export type Dataset = Schemas["Dataset"];
export type DatasetDetail = Schemas["DatasetDetail"];
export type DatasetDiff = Schemas["Diff"];
export type DataReport = Schemas["DataReport"];
export type Inspection = Schemas["Inspection"];
export type Deletion = Schemas["Deletion"];
export type TeamOfPlatform = Schemas["Team"];
export type DeletionPreview = Schemas["DeletionPreview"];

export type Reconciler = Schemas["Sweeper"];
export type Calibration = Schemas["Calibration"];
export type AdmissionDecision = Schemas["Decision"];
export type DecisionReplay = Schemas["Replay"];
export type Orphans = Schemas["Orphans"];
export type LostObject = Schemas["LostObject"];
export type LostAttempt = Schemas["LostAttempt"];
export type Seen = Schemas["Seen"];

export type Cluster = Schemas["Cluster"];
type Open = "config" | "proposed_pools";
export type ClusterSetup = Omit<Schemas["Setup"], Open> & { config: JsonObject; proposed_pools: ProposedPool[] };
export type FullCluster = Omit<Schemas["FullCluster"], "setup"> & { setup: ClusterSetup | null };
export type ProposedPool = Schemas["Proposal"];
export type Pool = Schemas["Pool"];
export type PoolChange = Schemas["PoolChangeRequest"];
export type ClusterHealthCheck = Schemas["Probe"];
export type ClusterCheck = Schemas["Check"];
export type Finding = Schemas["Finding"];
export type ClusterKind = Omit<Schemas["Kind"], "configuration"> & { configuration: JsonObject };
export type ClusterNode = Schemas["Node"];
export type ActedNode = Schemas["ActedNode"];
export type NodeIncident = Schemas["Incident"];
export type NodePreflight = Schemas["NodePreflight"];
export type Preflight = Schemas["Preflight"];
export type PreflightReport = Schemas["PreflightReport"];
export type QueuedAttempt = Schemas["Queued"];

export type Quotas = Schemas["Quotas"];
export type QuotaNode = Schemas["QuotaNode"];
export type QuotaShare = Schemas["Share"];
export type QuotaPreview = Schemas["QuotaPreview"];
export type QuotaUsage = Schemas["QuotaUsage"];
export type TouchedJob = Schemas["TouchedJob"];
/** A wish about a node: what is not named stays. */
export type NodeChange = Partial<Schemas["NodeChange"]> & { node: string };
export type AdmissionSettings = Schemas["AdmissionSettings"];
export type PoolQueue = Schemas["PoolQueue"];
export type QueuedJob = Schemas["QueuedJob"];
export type Wait = Schemas["Wait"];
export type Budget = Schemas["Budget"];
type Defaulted = "currency" | "accelerator";
export type NewBudget = Omit<Schemas["NewBudgetRequest"], Defaulted> &
  Partial<Pick<Schemas["NewBudgetRequest"], Defaulted>>;
export type BudgetChange = Schemas["PatchedBudgetChangeRequest"];
export type BudgetStatement = Schemas["BudgetStatement"];
export type BudgetLine = Schemas["BudgetLine"];
export type Costs = Schemas["Costs"];
export type JobCost = Schemas["JobCost"];
export type CostRow = Schemas["CostRow"];
export type PoolPrice = Schemas["Price"];
export type PoolPriceChange = Schemas["PatchedPriceChangeRequest"];
export type PoolPriceRule = Schemas["PriceRule"];
export type PriceSeries = Schemas["PriceSeries"];
export type NewPriceSeries = Schemas["NewPriceSeriesRequest"];

export type Simulation = Schemas["SimulationDocument"];
export type SimulationSummary = Schemas["SimulationSummary"];
export type SimulationReport = Schemas["Report"];
export type SimulationFigures = Schemas["Figures"];
/** What is left out has its default. */
export type SimulationWish = Partial<Omit<Schemas["SimulationRequestRequest"], "changes" | "generate" | "settings">> & {
  changes?: NodeChange[];
  generate?: Partial<Schemas["MadeUp"]>;
  settings?: Partial<Schemas["ProposedSettings"]>;
};
