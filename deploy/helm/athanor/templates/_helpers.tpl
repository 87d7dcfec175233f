{{- define "athanor.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of all names. Short enough for the longest suffix. */}}
{{- define "athanor.fullname" -}}
{{- $name := include "athanor.name" . -}}
{{- $made := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $made .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "athanor.selector" -}}
app.kubernetes.io/name: {{ include "athanor.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "athanor.labels" -}}
{{ include "athanor.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "athanor.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name of the account of web and worker. */}}
{{- define "athanor.clusterAccount" -}}
{{- include "athanor.fullname" . }}{{ if .Values.inCluster.enabled }}-jobs{{ end }}
{{- end -}}

{{/*
The secret settings of a component, as JSON: its Secret, its key, whether it must be there:
(dict "root" $ "component" "web").
*/}}
{{- define "athanor.secrets" -}}
{{- $root := .root -}}
{{- $required := list "DATABASE_URL" "CELERY_BROKER_URL" "ATHANOR_SECRET_KEY" "ATHANOR_MASTER_KEY" -}}
{{- $names := concat $required (list "ATHANOR_S3_ACCESS_KEY" "ATHANOR_S3_SECRET_KEY" "ATHANOR_OIDC_CLIENT_SECRET" "ATHANOR_SMTP_PASSWORD" "ATHANOR_PREVIOUS_MASTER_KEY") -}}
{{- if eq .component "prepare" -}}
{{- $names = concat $names (list "ATHANOR_MIGRATION_DATABASE_URL" "ATHANOR_BOOTSTRAP_PASSWORD") -}}
{{- end -}}
{{- if and $root.Values.metrics.enabled (eq .component "web") -}}
{{- $names = append $names "ATHANOR_METRICS_TOKEN" -}}
{{- end -}}
{{- $secrets := list -}}
{{- range $name := $names -}}
{{- $from := default dict (get $root.Values.secrets.from $name) -}}
{{- $must := or (not (empty $from)) (has $name $required) (eq $name "ATHANOR_METRICS_TOKEN") -}}
{{- $secrets = append $secrets (dict "name" $name "secret" (default $root.Values.secrets.name $from.name) "key" (default $name $from.key) "must" $must) -}}
{{- end -}}
{{- $secrets | toJson -}}
{{- end -}}

{{- define "athanor.secretsFolder" -}}/run/secrets/athanor{{- end -}}

{{/* Environment variables of a component: (dict "root" $ "component" "web"). */}}
{{- define "athanor.environment" -}}
{{- $root := .root -}}
{{- range include "athanor.secrets" . | fromJsonArray }}
{{- if and $root.Values.secrets.asFiles .must }}
- name: {{ .name }}_FILE
  value: {{ include "athanor.secretsFolder" $root }}/{{ .name }}
{{- else }}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
      {{- if not .must }}
      optional: true
      {{- end }}
{{- end }}
{{- end }}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: ATHANOR_PUBLIC_URL
  value: {{ $root.Values.publicUrl | quote }}
# Health checks and scrapes come to the address of the pod.
- name: ATHANOR_ALLOWED_HOSTS
  value: {{ concat (list (urlParse $root.Values.publicUrl).hostname "$(POD_IP)" "[$(POD_IP)]") $root.Values.allowedHosts | join "," | quote }}
{{- with $root.Values.trustedProxies }}
- name: ATHANOR_TRUSTED_PROXIES
  value: {{ join "," . | quote }}
{{- end }}
{{- with $root.Values.objectStore }}
{{- if .endpoint }}
- name: ATHANOR_S3_ENDPOINT
  value: {{ .endpoint | quote }}
{{- end }}
- name: ATHANOR_S3_REGION
  value: {{ .region | quote }}
- name: ATHANOR_S3_BUCKET
  value: {{ .bucket | quote }}
{{- end }}
{{- range $name, $value := $root.Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with concat $root.Values.extraEnv (get $root.Values .component).extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
The template of a component's pods:
(dict "root" $ "component" "web" "account" NAME "token" false "container" YAML-OF-ARGS-PORTS-AND-PROBES "spec" YAML).
*/}}
{{- define "athanor.podTemplate" -}}
{{- $root := .root -}}
{{- $values := get $root.Values .component -}}
metadata:
  labels:
    {{- include "athanor.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ .account }}
  automountServiceAccountToken: {{ .token }}
  # A Service that is called athanor would set ATHANOR_PORT and other names that the platform refuses.
  enableServiceLinks: false
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- merge (dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault")) $root.Values.podSecurityContext | toYaml | nindent 4 }}
  {{- with .spec }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $values.terminationGracePeriodSeconds }}
  terminationGracePeriodSeconds: {{ . }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- $own := dict "labelSelector" (dict "matchLabels" (include "athanor.componentSelector" $ | fromYaml)) }}
    {{- $spread := list }}
    {{- range . }}
    {{- $spread = append $spread (hasKey . "labelSelector" | ternary . (merge (deepCopy $own) .)) }}
    {{- end }}
    {{- toYaml $spread | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "athanor.image" $root | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      {{- .container | nindent 6 }}
      env:
        {{- include "athanor.environment" . | trim | nindent 8 }}
      {{- with $values.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if $root.Values.secrets.asFiles }}
        - {name: secrets, mountPath: {{ include "athanor.secretsFolder" $root }}, readOnly: true}
        {{- end }}
        {{- if $root.Values.clusters.secret }}
        - {name: clusters, mountPath: /etc/athanor/clusters, readOnly: true}
        {{- end }}
        {{- with $root.Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: {{ $root.Values.temporarySize }}}
    {{- if $root.Values.secrets.asFiles }}
    - name: secrets
      projected:
        defaultMode: 0444
        sources:
          {{- range include "athanor.secrets" . | fromJsonArray }}
          {{- if .must }}
          - secret: {name: {{ .secret }}, items: [{key: {{ .key }}, path: {{ .name }}}]}
          {{- end }}
          {{- end }}
    {{- end }}
    {{- with $root.Values.clusters.secret }}
    - name: clusters
      secret: {secretName: {{ . }}}
    {{- end }}
    {{- with $root.Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "athanor.componentSelector" -}}
{{ include "athanor.selector" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/*
Seconds until the startup probe gives up: the wait for the migrations, and a minute and a quarter to start.
The program's own health check is the liveness probe: it fails when the event loop has not reported for a minute, and
does not look at the stores, so that an outage of these restarts nothing.
*/}}
{{- define "athanor.startupSettings" -}}
periodSeconds: 5
failureThreshold: {{ div (add .Values.prepare.awaitMigrationsSeconds 75) 5 }}
timeoutSeconds: 10
{{- end -}}

{{- define "athanor.aliveProbe" -}}
exec: {command: [python, -m, athanor.config.program, healthy]}
{{- end -}}

{{- define "athanor.livenessProbe" -}}
livenessProbe:
  {{- include "athanor.aliveProbe" . | nindent 2 }}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 3
{{- end -}}

{{- define "athanor.podDisruptionBudget" -}}
{{- $values := get .root.Values .component -}}
{{- if $values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "athanor.fullname" .root }}-{{ .component }}
  labels:
    {{- include "athanor.labels" .root | nindent 4 }}
spec:
  maxUnavailable: {{ $values.podDisruptionBudget.maxUnavailable }}
  # Pods that are not ready, as in an outage of the database, do not keep nodes from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "athanor.componentSelector" . | nindent 6 }}
{{- end }}
{{- end -}}
