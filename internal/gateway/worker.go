package gateway

import "github.com/select-service/select-service/pkg/catalog"

func adaptersOf(w *catalog.Worker) []string               { return nil }
func roleOf(w *catalog.Worker) string                     { return "" }
func rankEndpointsOf(w *catalog.Worker) map[uint32]string { return nil }
