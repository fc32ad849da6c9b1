package admin

import (
	"net/http"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

func TestUsage(t *testing.T) {
	keys := []service.APIKey{{Name: "acme-2023-11", Tenant: "acme", Limits: service.KeyLimits{TokensPerMonth: 30}}}
	a := api(&balancer{complete: true}, func(o *Options) { o.Limited = func() []telemetry.LimitedName { return telemetry.LimitedKeys(keys) } })
	const counts = `"model":"llama","region":"local/us","requests":3,"prompt_tokens":20,"cached_tokens":8,"output_tokens":4,"priced_requests":0,"cost_nano_usd":0,"cost_usd":null,`
	for path, want := range map[string]string{
		"/usage": `{"at":"2023-11-14T22:13:20Z","month":"2023-11","complete":true,"usage":[{"key":"acme-2023-11","tenant":"acme",` + counts +
			`"today":{"requests":1,"prompt_tokens":0,"cached_tokens":0,"output_tokens":0,"priced_requests":0,"cost_nano_usd":0}}],` +
			`"quotas":[{"key":"acme-2023-11","tenant":"acme","unit":"tokens","period":"month","limit":30,"used":24,"remaining":6,"resets_at":"2023-12-01T00:00:00Z","what":"tokens","left":6}],"budgets":[]}`,
		"/v1/usage?month=2023-10": `{"at":"2023-11-14T22:13:20Z","month":"2023-10","complete":true,"usage":[{"key":"acme-2023-10","tenant":"",` + counts + `"today":null}],"quotas":[],"budgets":[]}`,
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
