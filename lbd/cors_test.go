package lbd

import (
	"net/http"
	"strings"
	"testing"

	"skyserve/internal/service"
)

// preflight sends a browser's preflight request and returns the permitted origin.
func (n *node) preflight(t *testing.T, web *http.Client, origin string) (allowed string, status int) {
	t.Helper()
	req, err := http.NewRequest(http.MethodOptions, n.public+"/v1/chat/completions", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Origin", origin)
	req.Header.Set("Access-Control-Request-Method", "POST")
	resp, err := web.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.Header.Get("Access-Control-Allow-Origin"), resp.StatusCode
}

// A reload changes the web pages that may use the API. Connections continue.
func TestReloadChangesCORS(t *testing.T) {
	const page = "https://app.example.com"
	f := startFiled(t, service.BalancerConfig{ID: "lb-us", Region: "local/us"}, Options{})
	web := client(t)
	expect := func(origin string, status int) {
		t.Helper()
		if got, code := f.preflight(t, web, page); got != origin || code != status {
			t.Errorf("a preflight request gets %d and permits %q, want %d and %q", code, got, status, origin)
		}
	}
	expect("", 405)
	f.change(func(c *service.BalancerConfig) { c.Balancer.CORS = &service.CORS{Origins: []string{page}} })
	if done := f.reload(); len(done.Changed) != 1 || done.Changed[0] != "balancer.cors: "+page+", was none" || len(done.Restart) > 0 {
		t.Errorf("the reload reports %+v", done)
	}
	expect(page, 204)
	f.change(func(c *service.BalancerConfig) { c.Balancer.CORS.Origins = []string{"https://app.example.com/chat"} })
	if why := f.refused(); !strings.Contains(why, "balancer.cors: origins[0]: must be * or an origin") {
		t.Errorf("an invalid origin is rejected with %q", why)
	}
	expect(page, 204)
	f.change(func(c *service.BalancerConfig) { c.Balancer.CORS = nil })
	f.reload()
	expect("", 405)
}
