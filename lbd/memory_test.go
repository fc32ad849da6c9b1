package lbd

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// Requests can use the configured memory. A tenant that exceeds its share receives an error, and so
// do all tenants once the total is used, before a body is read.
func TestConfiguredMemoryLimits(t *testing.T) {
	testkit.Slow(t)
	e := newEngine(t, "llama", "")
	e.hold = make(chan struct{})
	t.Setenv("KEYS", "sk-a tenant=a\nsk-b tenant=b\nsk-c tenant=c")
	cfg := config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama"})
	cfg.Balancer.Push = "blind"
	cfg.Balancer.Auth = &service.Auth{KeysFrom: "env:KEYS"}
	cfg.Balancer.Memory = service.Memory{Total: 256 * service.MiB, Requests: 64 * service.MiB, Tenant: 32 * service.MiB}
	n := start(t, cfg, Options{})
	ready(t, n)
	const size = 12 << 20
	hc := client(t)
	var sending sync.WaitGroup
	hold := func(key string) {
		sending.Go(func() {
			body := `{"model":"llama","pad":"` + strings.Repeat("x", size) + `","messages":[]}`
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.public+chatPath, strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+key)
			resp, err := hc.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("%s: status %d, %v", key, resp.StatusCode, err)
			}
		})
	}
	refused := func(key string, want int, code string) {
		t.Helper()
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", chatPath, key, size)
		if got, status := rawly(t, n.public, head, false); status != want || !strings.Contains(got, `"code":"`+code+`"`) {
			t.Errorf("%s: status %d: %s, want %d %s", key, status, got, want, code)
		}
	}
	for i, key := range []string{"sk-a", "sk-a", "sk-b", "sk-b"} {
		hold(key)
		testkit.Eventually(t, "the engine has it", func() bool { return e.count() == i+1 })
		if i == 1 {
			refused("sk-a", http.StatusTooManyRequests, "tenant_memory")
		}
	}
	refused("sk-c", http.StatusServiceUnavailable, "memory")
	refused("sk-nobody", http.StatusUnauthorized, "invalid_api_key")
	close(e.hold)
	sending.Wait()
	n.quiet(t)
	testkit.Eventually(t, "nothing is accounted for", func() bool { return strings.Contains(n.metrics(t), "skyserve_request_bytes 0\n") })
	if text := n.metrics(t); !strings.Contains(text, `skyserve_memory_refused_total{bound="tenant",limit="tenant"} 1`) || !strings.Contains(text, `skyserve_memory_refused_total{bound="requests",limit="requests"} 1`) {
		t.Error("the metrics do not count the rejections")
	}
}

// metrics returns the metrics of the admin address.
func (n *node) metrics(t *testing.T) string {
	t.Helper()
	resp, err := client(t).Get(n.adminURL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
