{{- define "mcp-proxy.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) }}
{{- $name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "mcp-proxy.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mcp-proxy.labels" -}}
{{ include "mcp-proxy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The headless Service that has the addresses of all replicas. */}}
{{- define "mcp-proxy.replicas" -}}
{{- printf "%s-replicas" (include "mcp-proxy.name" . | trunc 54 | trimSuffix "-") }}
{{- end }}

{{/* The configuration: what the chart knows, and .Values.config on top. The names of the Service are always allowed. */}}
{{- define "mcp-proxy.config" -}}
{{- $name := include "mcp-proxy.name" . }}
{{- $hosts := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) }}
{{- $config := dict
  "listen" (list "0.0.0.0:8080")
  "admin" (dict "listen" (list "0.0.0.0:9090"))
  "drainDelay" "5s" }}
{{- if .Values.token.secret }}
{{- $_ := set $config "tokenFile" "/run/secrets/mcp-proxy/token" }}
{{- end }}
{{- if .Values.cluster.secret }}
{{- $_ := set $config "cluster" (dict "keyFile" "/run/secrets/mcp-proxy-cluster/key" "join" (list (printf "%s.%s.svc" (include "mcp-proxy.replicas" .) .Release.Namespace))) }}
{{- end }}
{{- $config = mergeOverwrite $config (deepCopy .Values.config) }}
{{- $_ := set $config "allowedHosts" (concat $hosts ($config.allowedHosts | default list) | uniq) }}
{{- if not (or $config.upstreams $config.links) }}
{{- fail "config: name at least one server in upstreams, or a host in links" }}
{{- end }}
{{- if not (or $config.tokenFile $config.auth $config.insecure (dig "tls" "clientCA" "" $config)) }}
{{- fail "token.secret: clients have to prove who they are (or config: auth, tls.clientCA, or insecure: true)" }}
{{- end }}
{{- toYaml $config }}
{{- end }}
