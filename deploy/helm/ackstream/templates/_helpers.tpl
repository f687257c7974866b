{{/* All of them take a dict: root, the context of the chart, and part, the name of the workload. */}}

{{- define "ackstream.name" -}}
{{ printf "%s-%s" .root.Release.Name .part | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "ackstream.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "ackstream.metadata" -}}
name: {{ include "ackstream.name" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "ackstream.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Labels and annotations of a pod: a change of the settings starts it anew. */}}
{{- define "ackstream.podMetadata" -}}
labels:
  {{- include "ackstream.selector" . | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/settings: {{ .root.Values.settings | sha256sum }}
  {{- with .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The Pod Security Standard "restricted"; the user is that of the image. */}}
{{- define "ackstream.pod" -}}
enableServiceLinks: false
automountServiceAccountToken: false
{{- with .root.Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Also takes args, env (by name) and resources. */}}
{{- define "ackstream.container" -}}
name: {{ .part }}
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: {{ toJson .args }}
env:
  {{- $own := dict "ACKSTREAM_CONF" "/etc/ackstream/ackstream.toml" "ACKSTREAM_LAKE_PATH" .root.Values.lake.path }}
  {{- $_ := set $own "ACKSTREAM_LAKE_CHECKPOINTS" .root.Values.lake.checkpoints }}
  {{- /* probes and Prometheus come from other hosts */}}
  {{- $_ := merge $own (dict "ACKSTREAM_METRICS_HOST" "0.0.0.0" "ACKSTREAM_METRICS_PORT" "9464") }}
  {{- with .root.Values.kafka.bootstrap }}{{ $_ := set $own "ACKSTREAM_KAFKA_BOOTSTRAP" . }}{{ end }}
  {{- with .root.Values.kafka.topicPrefix }}{{ $_ := set $own "ACKSTREAM_KAFKA_TOPIC_PREFIX" . }}{{ end }}
  {{- range $name, $value := mergeOverwrite (dict) $own .variables .root.Values.env .env }}
  - {name: {{ $name }}, value: {{ $value | toString | quote }}}
  {{- end }}
{{- with .root.Values.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
resources: {{- toYaml .resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Also takes startupPeriod and readinessPeriod, in seconds. */}}
{{- define "ackstream.probes" -}}
startupProbe:
  httpGet: {path: /health/live, port: metrics}
  periodSeconds: {{ .startupPeriod }}
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /health/live, port: metrics}
  periodSeconds: 20
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /health/ready, port: metrics}
  periodSeconds: {{ .readinessPeriod }}
  timeoutSeconds: 5
{{- end }}

{{/* The settings, and the Secret of a workload with a login. */}}
{{- define "ackstream.mounts" -}}
- {name: settings, mountPath: /etc/ackstream, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if and .login .root.Values.kafka.secretPrefix }}
- {name: kafka, mountPath: /run/secrets/kafka, readOnly: true}
{{- end }}
{{- if and .lake (hasPrefix "/" .root.Values.lake.path) }}
- {name: lake, mountPath: {{ .root.Values.lake.path }}{{ if eq .lake "read" }}, readOnly: true{{ end }}}
{{- end }}
{{- end }}

{{- define "ackstream.volumes" -}}
- {name: settings, configMap: {name: {{ include "ackstream.name" (dict "root" .root "part" "settings") }}}}
{{- /* for what does not fit into memory */}}
- {name: tmp, emptyDir: {}}
{{- if and .login .root.Values.kafka.secretPrefix }}
- {name: kafka, secret: {secretName: {{ .root.Values.kafka.secretPrefix }}{{ .part }}}}
{{- end }}
{{- if and .lake (hasPrefix "/" .root.Values.lake.path) }}
- {name: lake, persistentVolumeClaim: {claimName: {{ include "ackstream.claim" . }}}}
{{- end }}
{{- end }}

{{- define "ackstream.claim" -}}
{{ .root.Values.lake.claim.name | default (include "ackstream.name" (dict "root" .root "part" "lake")) }}
{{- end }}

{{/* Takes size and storageClass. */}}
{{- define "ackstream.storage" -}}
resources:
  requests:
    storage: {{ .size }}
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
{{- end }}
