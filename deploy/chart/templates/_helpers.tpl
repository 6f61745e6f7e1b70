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
    "self_signed" (ne .Values.provider "agentgateway")
    "drain_delay" (printf "%ds" (int .Values.drain.delaySeconds))
    "drain_timeout" (printf "%ds" (int .Values.drain.timeoutSeconds)))
  "kubernetes" (dict "pools" $pools)
  "replicas" (dict "kube_peer_service" (printf "%s-peers" .Release.Name)) }}
{{- with .Values.proxy.port }}
{{- $_ := set $config "proxy" (dict "port" .) }}
{{- end }}
{{- mergeOverwrite $config (deepCopy .Values.config) | toYaml }}
{{- end }}

{{- /* The proxy's port, by the configuration; nothing without one. */}}
{{- define "proxyPort" -}}
{{- with dig "proxy" "port" 0 (include "config" . | fromYaml) }}{{ int . }}{{ end }}
{{- end }}

{{- /* Whether port 9002 speaks TLS, by the configuration. */}}
{{- define "tls" -}}
{{- $config := include "config" . | fromYaml }}
{{- if or $config.gateway.self_signed (dig "tls" "cert" "" $config) }}true{{ end }}
{{- end }}

{{- /* A duration of the configuration in whole seconds, rounded up. name is its key, value
       what that has: 600, "600s", "1h30m". */}}
{{- define "seconds" -}}
{{- $text := .value | toString | trim }}
{{- if or (kindIs "float64" .value) (kindIs "int64" .value) (kindIs "int" .value) }}
{{- $text = printf "%.9fs" (float64 .value) }}
{{- else if regexMatch "^[0-9]+([.][0-9]*)?$" $text }}
{{- $text = printf "%ss" $text }}
{{- end }}
{{- if not (regexMatch "^([0-9]+([.][0-9]*)?(ns|us|µs|ms|s|m|h))+$" $text) }}
{{- fail (printf "config.%s: %v is not a duration such as 30s or 10m" .name .value) }}
{{- end }}
{{- toDate "2006-01-02" "1970-01-01" | mustDateModify $text | mustDateModify "999999999ns" | unixEpoch }}
{{- end }}

{{- /* How long running answers may take when a pod stops, in seconds. */}}
{{- define "drainTimeout" -}}
{{- $config := include "config" . | fromYaml }}
{{- include "seconds" (dict "name" "gateway.drain_timeout" "value" $config.gateway.drain_timeout) }}
{{- end }}

{{- /* The pod's grace in seconds, by the configuration. What a variable says goes before that and is
       not followed here. */}}
{{- define "grace" -}}
{{- range .Values.env }}
{{- if has .name (list "SELECT_SERVICE_GATEWAY_DRAIN_DELAY" "SELECT_SERVICE_GATEWAY_DRAIN_TIMEOUT" "DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS") }}
{{- fail (printf "env: the pod's grace does not follow %s; set drain.delaySeconds and drain.timeoutSeconds" .name) }}
{{- end }}
{{- end }}
{{- $config := include "config" . | fromYaml }}
{{- $delay := include "seconds" (dict "name" "gateway.drain_delay" "value" $config.gateway.drain_delay) }}
{{- add $delay (include "drainTimeout" .) 10 }}
{{- end }}

{{- /* Of the dictionaries base and over, the keys of over and the others of base. null leaves a key out. */}}
{{- define "overlaid" -}}
{{- $all := deepCopy .base }}
{{- range $key, $value := .over }}
{{- if kindIs "invalid" $value }}{{ $_ := unset $all $key }}{{ else }}{{ $_ := set $all $key $value }}{{ end }}
{{- end }}
{{- toYaml $all }}
{{- end }}

{{- /* The pod's securityContext. OpenShift gives a pod ids of its namespace and takes no others. */}}
{{- define "podSecurityContext" -}}
{{- $base := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- if not .Values.openshift }}
{{- $base = merge $base (dict "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532) }}
{{- end }}
{{- include "overlaid" (dict "base" $base "over" .Values.podSecurityContext) }}
{{- end }}

{{- define "securityContext" -}}
{{- $base := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) }}
{{- include "overlaid" (dict "base" $base "over" .Values.securityContext) }}
{{- end }}

{{- define "rules" -}}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
  - {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [get, list, watch]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
{{- end }}
