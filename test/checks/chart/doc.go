// Package chart checks the Helm chart and the manifests that are made from it. With
// SELECT_SERVICE_HELM, the path of helm, it renders the chart and compares; with
// -rewrite beside it, it writes what was rendered.
package chart
