{{- /* The name of all objects: the name of the release, with the chart's name unless it contains it. Names of Services are
labels: they have no dots, and begin with a letter. */ -}}
{{- define "connectivity.name" -}}
{{- $name := .Release.Name | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "%s-%s" .Chart.Name $name }}{{ end -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "connectivity.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "connectivity.labels" -}}
{{ include "connectivity.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "connectivity.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s-%s" .Chart.AppVersion .Values.image.variant) }}
{{- end -}}

{{- /* The host names of the API in the cluster. */ -}}
{{- define "connectivity.hosts" -}}
{{- $name := include "connectivity.name" . -}}
{{- concat (list $name (printf "%s.%s" $name .Release.Namespace) "*.svc" "*.svc.cluster.local") .Values.api.hosts | join ", " -}}
{{- end -}}

{{- define "connectivity.resources" -}}
{{- if .Values.resources -}}
{{ toYaml .Values.resources }}
{{- else if eq .Values.image.variant "lake" -}}
requests: {cpu: "1", memory: 2Gi}
limits: {memory: 4Gi}
{{- else -}}
requests: {cpu: 250m, memory: 256Mi}
limits: {memory: 1Gi}
{{- end -}}
{{- end -}}
