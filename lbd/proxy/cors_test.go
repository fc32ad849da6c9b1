package proxy

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
)

// preflight is the request that a browser sends before a page's POST with a key.
func (b *balancer) preflight(path, origin, headers string) *http.Response {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodOptions, b.url+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.do(req, "Origin: "+origin, "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: "+headers)
}

func permission(resp *http.Response) map[string]string {
	p := map[string]string{}
	for name, values := range resp.Header {
		if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
			p[name] = strings.Join(values, "; ")
		}
	}
	return p
}

const page = "https://app.example.com"

// corsBalancer returns a balancer that requires a key and permits the page.
func corsBalancer(t *testing.T, origins ...string) *balancer {
	o := testOptions(t)
	o.Keys = apiKeys("sk-one")
	b := start(t, o)
	b.SetCORS(&service.CORS{Origins: origins, MaxAge: time.Hour})
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		// vLLM permits every page by default.
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Access-Control-Allow-Credentials", "true")
		w.Header().Set("Vary", "Accept-Encoding")
		speak("hi")(w, req)
	}))
	return b
}

// A browser's preflight request is answered without a key, for the configured origins only.
func TestPreflight(t *testing.T) {
	b := corsBalancer(t, "https://other.example.com", page)
	resp := b.preflight(chatPath, page, "authorization,content-type, x-stainless-os,x-skyserve-tier,x-skyserve-peer-token")
	if resp.StatusCode != http.StatusNoContent {
		t.Fatalf("status %d", resp.StatusCode)
	}
	want := map[string]string{
		"Access-Control-Allow-Origin": page, "Access-Control-Allow-Methods": "GET, POST, DELETE", "Access-Control-Max-Age": "3600",
		"Access-Control-Allow-Headers": "authorization, content-type, x-stainless-os, x-skyserve-tier",
		"Vary":                         "Origin; Access-Control-Request-Headers",
	}
	if got := permission(resp); !equalMaps(got, want) {
		t.Errorf("the permission is %v, want %v", got, want)
	}
	for _, origin := range []string{"https://evil.example.com", "http://app.example.com", "https://app.example.com:8443", "null", "https://APP.example.com"} {
		denied := b.preflight(chatPath, origin, "authorization")
		expect(t, denied, 405, "method_not_allowed")
		if got := permission(denied); !equalMaps(got, map[string]string{"Vary": "Origin"}) {
			t.Errorf("%s receives %v", origin, got)
		}
	}
	if c := b.View().Counts; c.Arrived != 0 {
		t.Errorf("counts %+v", c)
	}
}

func equalMaps(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

// A page can read streams and errors, by the balancer's permission and not by the engine's.
func TestWebPagesReadResponses(t *testing.T) {
	b := corsBalancer(t, page)
	key := "Authorization: Bearer sk-one"
	for name, c := range map[string]struct {
		resp   *http.Response
		status int
		vary   string
	}{
		"a stream":       {b.post(chatPath, streamBody, key, "Origin: "+page), 200, "Origin; Accept-Encoding"},
		"an error":       {b.post(chatPath, `{`, key, "Origin: "+page), 400, "Origin"},
		"a missing key":  {b.post(chatPath, streamBody, "Origin: "+page), 401, "Origin"},
		"an unknown URL": {b.post("/nowhere", "", "Origin: "+page), 404, "Origin"},
	} {
		expect(t, c.resp, c.status, "")
		got := permission(c.resp)
		if got["Access-Control-Allow-Origin"] != page || got["Vary"] != c.vary || got["Access-Control-Allow-Credentials"] != "" {
			t.Errorf("%s has %v", name, got)
		}
		exposed := strings.Split(got["Access-Control-Expose-Headers"], ", ")
		for _, header := range []string{"X-Request-ID", "X-Skyserve-Region", "X-Skyserve-Model", "X-Skyserve-Estimate", "X-Skyserve-Waits-For", "Retry-After"} {
			if !slices.Contains(exposed, header) {
				t.Errorf("%s does not expose %s: %v", name, header, exposed)
			}
		}
	}
	other := b.post(chatPath, streamBody, key, "Origin: https://evil.example.com")
	expect(t, other, 200, "")
	if got := permission(other); !equalMaps(got, map[string]string{"Vary": "Origin; Accept-Encoding"}) {
		t.Errorf("another page receives %v", got)
	}
}

// With * every page may use the API; caches may share its responses.
func TestEveryWebPageIsAllowed(t *testing.T) {
	b := corsBalancer(t, "*")
	resp := b.post(chatPath, streamBody, "Authorization: Bearer sk-one", "Origin: "+page)
	expect(t, resp, 200, "")
	if got := permission(resp); got["Access-Control-Allow-Origin"] != "*" || got["Vary"] != "Accept-Encoding" {
		t.Errorf("the permission is %v", got)
	}
}

// Without cors no page can read responses, whatever the engine permits.
func TestNoWebPageIsAllowedByDefault(t *testing.T) {
	b := corsBalancer(t, page)
	b.SetCORS(nil)
	expect(t, b.preflight(chatPath, page, "authorization"), 405, "method_not_allowed")
	resp := b.post(chatPath, streamBody, "Authorization: Bearer sk-one", "Origin: "+page)
	expect(t, resp, 200, "")
	if got := permission(resp); !equalMaps(got, map[string]string{"Vary": "Accept-Encoding"}) {
		t.Errorf("the permission is %v", got)
	}
	b.SetCORS(&service.CORS{Origins: []string{page}})
	if resp := b.preflight("/v1/models", page, "authorization"); resp.StatusCode != 204 || permission(resp)["Access-Control-Max-Age"] != "600" {
		t.Errorf("after a reload: %d %v", resp.StatusCode, permission(resp))
	}
}

// A response through a peer has one permission.
func TestWebPagesReadForwardedResponses(t *testing.T) {
	us, eu := pair(t, "secret")
	for _, b := range []*balancer{us, eu} {
		b.SetCORS(&service.CORS{Origins: []string{page}})
	}
	eu.attach("eu-0", engine(t, speak("hi")))
	us.receiveReport("lb-eu-0")
	resp := us.post(chatPath, streamBody, "Origin: "+page)
	expect(t, resp, 200, "")
	if got := permission(resp); got["Access-Control-Allow-Origin"] != page || got["Vary"] != "Origin" {
		t.Errorf("the permission is %v", got)
	}
}
