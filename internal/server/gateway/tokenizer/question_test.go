package tokenizer

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/server/gateway/openai"
)

// TestSecured proves that the certificate of a server with TLS is verified.
func TestSecured(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	c := client(t, Options{URL: s.URL, Protocol: VLLMTokenize})
	if _, err := c.Tokens(t.Context(), request(t, openai.Chat, chat)); reasonOf(err) != Unavailable || !strings.Contains(err.Error(), "certificate") {
		t.Error(err)
	}
}

// TestEarlyAnswer proves that a server which refuses a question before it has read it is heard.
func TestEarlyAnswer(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
	}))
	defer s.Close()
	c := client(t, Options{URL: s.URL, Protocol: VLLMTokenize})
	long := `{"model":"lora","messages":[{"role":"user","content":"` + strings.Repeat("x", 8<<20) + `"}]}`
	if _, err := c.Tokens(t.Context(), request(t, openai.Chat, long)); reasonOf(err) != Rejected {
		t.Error(err)
	}
}
