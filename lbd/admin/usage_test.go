package admin

import (
	"net/http"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	a := api(&balancer{complete: true}, nil)
	const counts = `"model":"llama","region":"local/us","requests":3,"prompt_tokens":20,"cached_tokens":8,"output_tokens":4,`
	for path, want := range map[string]string{
		"/usage": `{"at":"2023-11-14T22:13:20Z","month":"2023-11","complete":true,"usage":[{"key":"acme-2023-11",` + counts +
			`"today":{"requests":1,"prompt_tokens":0,"cached_tokens":0,"output_tokens":0}}]}`,
		"/v1/usage?month=2023-10": `{"at":"2023-11-14T22:13:20Z","month":"2023-10","complete":true,"usage":[{"key":"acme-2023-10",` + counts + `"today":null}]}`,
	} {
		if status, body := call(a, "GET", path, ""); status != http.StatusOK || strings.TrimSpace(body) != want {
			t.Errorf("%s: %d %s, want %s", path, status, body, want)
		}
	}
	for _, month := range []string{"november", "2023-13", "2023-1", "23-01", "2023-11-01", "%00"} {
		status, body := call(a, "GET", "/usage?month="+month, "")
		if status != http.StatusBadRequest || !strings.Contains(body, "month must be a year and a month such as 2026-11, got ") {
			t.Errorf("%s: %d %s", month, status, body)
		}
	}
	if status, _ := call(a, "POST", "/usage", ""); status == http.StatusOK {
		t.Error("usage can be posted")
	}
}
