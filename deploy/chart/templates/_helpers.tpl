{{/* The name of an image, of (dict "image" (its values) "appVersion" (the chart's)). A digest says exactly which; a tag beside it would say nothing. Pass it through toYaml: a name that begins with an IPv6 address needs quotes. */}}
{{- define "ingress-daemonset.image" -}}
{{- with .image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.appVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Not empty if a Job reports before `helm uninstall`. Nobody can pull an image of registry.invalid: a release that never ran must not be held up by the Job. */}}
{{- define "ingress-daemonset.reports" -}}
{{- if and .Values.uninstallReport.enabled (not (hasPrefix "registry.invalid/" .Values.image.repository)) }}yes{{ end -}}
{{- end }}

{{/* What comes before the path of a document, such as docs/operations.md. */}}
{{- define "ingress-daemonset.documentation" -}}
{{- with .Values.documentation }}{{ trimSuffix "/" . }}/{{ end -}}
{{- end }}
