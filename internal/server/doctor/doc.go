// Package doctor looks for what is wrong with a running service and says it in sentences, each with
// what to do and where the runbook has more. A [Doctor] only reads. A healthy system has no finding but notes.
package doctor
