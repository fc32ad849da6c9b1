package agent

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"skyserve/internal/printable"
)

// versionPaths are where engines report their version as JSON: vLLM, then SGLang.
var versionPaths = []string{"/version", "/server_info"}

// Bounds of a version.
const (
	maxVersionBody = 1 << 20 // SGLang's document has all its arguments
	maxVersion     = 64      // bytes; a version of a development build has 40 characters
)

// readVersion asks the engine of a replica once after each start for its version.
func (a *Agent) readVersion(ctx context.Context, units []Unit) {
	a.mu.Lock()
	asked := a.versionRead || !a.recordsStarts()
	a.versionRead = true
	a.mu.Unlock()
	if asked {
		return
	}
	for _, u := range units {
		if v := engineVersion(ctx, u.ReadinessURL, u.ReadinessKey); v != "" {
			a.mu.Lock()
			a.version = v
			a.mu.Unlock()
			return
		}
	}
}

// engineVersion returns the version of the engine whose readiness URL is given; empty if it does not report it.
func engineVersion(ctx context.Context, ready, key string) string {
	base, err := url.Parse(ready)
	if err != nil || base.Host == "" {
		return ""
	}
	for _, path := range versionPaths {
		if v := versionAt(ctx, (&url.URL{Scheme: base.Scheme, Host: base.Host, Path: path}).String(), key); v != "" {
			return v
		}
	}
	return ""
}

func versionAt(ctx context.Context, address, key string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return ""
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := localClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var document struct {
		Version string `json:"version"`
	}
	if resp.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(resp.Body, maxVersionBody)).Decode(&document) != nil {
		return ""
	}
	return printable.Line(strings.ToValidUTF8(document.Version[:min(len(document.Version), maxVersion)], ""))
}
