{{- define "selector" -}}
app.kubernetes.io/name: select-service
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "metadata" -}}
name: {{ .Release.Name }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "selector" . | nindent 2 }}
{{- end }}

{{- define "image" -}}
{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Whether port 9002 speaks TLS. */}}
{{- define "tls" -}}
{{- if ne .Values.provider "agentgateway" }}true{{ end }}
{{- end }}

{{- /* select-service.yaml: the chart's, and over it the user's. */}}
{{- define "config" -}}
{{- $pools := list }}
{{- range .Values.pools }}
{{- $pools = append $pools (merge (dict "inference_pool" .name) (.options | default dict)) }}
{{- end }}
{{- $config := dict
  "server" (dict "port" 8092)
  "gateway" (dict
    "port" 9002
    "health_port" 9003
    "self_signed" (eq (include "tls" .) "true")
    "drain_delay" (printf "%ds" (int .Values.drain.delaySeconds))
    "drain_timeout" (printf "%ds" (int .Values.drain.timeoutSeconds)))
  "kubernetes" (dict "pools" $pools)
  "replicas" (dict "kube_peer_service" (printf "%s-peers" .Release.Name)) }}
{{- mergeOverwrite $config (deepCopy .Values.config) | toYaml }}
{{- end }}

{{- define "rules" -}}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
  - {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [get, list, watch]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
{{- end }}
