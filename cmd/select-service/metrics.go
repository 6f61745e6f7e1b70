package main

import (
	"net/http"

	"github.com/select-service/select-service/internal/service"
)

func collectors(*service.Service) http.Handler { return nil }
