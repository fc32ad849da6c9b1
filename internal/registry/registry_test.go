package registry_test

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	emulated "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"skyserve/internal/registry"
)

// serve starts a registry in this process; before answers a request in its place if it returns true.
func serve(t *testing.T, before func(http.ResponseWriter, *http.Request) bool) (host string) {
	t.Helper()
	images := emulated.New(emulated.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before == nil || !before(w, r) {
			images.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	t.Setenv("DOCKER_CONFIG", t.TempDir()) // not that of whoever runs the tests
	return strings.TrimPrefix(server.URL, "http://")
}

// push pushes an index of two platforms and returns its digest.
func push(t *testing.T, image string) string {
	t.Helper()
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	index, err := random.Index(16, 1, 2)
	if err == nil {
		err = remote.WriteIndex(ref, index)
	}
	var digest v1.Hash
	if err == nil {
		digest, err = index.Digest()
	}
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

// The digest of a tag is that of the index of all platforms; it changes when the tag is moved.
func TestDigestOfTag(t *testing.T) {
	image := serve(t, nil) + "/vllm/vllm-openai:v1"
	first := push(t, image)
	for _, named := range []string{image, image + "@" + first, strings.TrimSuffix(image, ":v1") + "@" + first} {
		if got, err := registry.Digest(t.Context(), named); err != nil || got != first {
			t.Errorf("%s: %s (%v), want %s", named, got, err, first)
		}
	}
	second := push(t, image)
	if got, err := registry.Digest(t.Context(), image); err != nil || got != second || got == first {
		t.Errorf("after the tag was moved: %s (%v), want %s", got, err, second)
	}
	if got, err := registry.Digest(t.Context(), image+"@"+first); err != nil || got != first {
		t.Errorf("the earlier image: %s (%v), want %s", got, err, first)
	}
}

// Each error tells what the operator can do about it.
func TestDigestErrors(t *testing.T) {
	answer := 0
	host := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if answer != 0 && strings.Contains(r.URL.Path, "/manifests/") {
			w.WriteHeader(answer)
		}
		return answer != 0 && strings.Contains(r.URL.Path, "/manifests/")
	})
	push(t, host+"/mine:1")
	for _, tt := range []struct {
		name, image string
		status      int
		want        error
	}{
		{"no such tag", host + "/mine:2", 0, registry.ErrNotFound},
		{"no such repository", host + "/other:1", 0, registry.ErrNotFound},
		{"no such digest", host + "/mine@sha256:" + strings.Repeat("0a", 32), 0, registry.ErrNotFound},
		{"unauthorized", host + "/mine:1", http.StatusUnauthorized, registry.ErrDenied},
		{"forbidden", host + "/mine:1", http.StatusForbidden, registry.ErrDenied},
		{"rate limit", host + "/mine:1", http.StatusTooManyRequests, registry.ErrLimited},
		{"invalid name", "vLLM/OpenAI:v1", 0, registry.ErrInvalid},
	} {
		answer = tt.status
		if got, err := registry.Digest(t.Context(), tt.image); !errors.Is(err, tt.want) {
			t.Errorf("%s: %q (%v), want %v", tt.name, got, err, tt.want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	if _, err := registry.Digest(ctx, host+"/mine:1"); err == nil || err.Error() != "interrupted" {
		t.Errorf("interrupted: %v", err)
	}
	for _, want := range []error{registry.ErrNotFound, registry.ErrDenied, registry.ErrLimited, registry.ErrInvalid} {
		if _, err := registry.Digest(t.Context(), "127.0.0.1:1/mine:1"); err == nil || errors.Is(err, want) {
			t.Errorf("a registry that does not listen: %v", err)
		}
	}
}

// A private registry is asked with the credentials of docker login.
func TestDigestUsesDockerCredentials(t *testing.T) {
	private := false
	host := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		if !private || user == "ann" && password == "secret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="mine"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	want := push(t, host+"/mine:1")
	private = true
	if _, err := registry.Digest(t.Context(), host+"/mine:1"); !errors.Is(err, registry.ErrDenied) {
		t.Errorf("without credentials: %v", err)
	}
	config := `{"auths": {"` + host + `": {"auth": "` + base64.StdEncoding.EncodeToString([]byte("ann:secret")) + `"}}}`
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := registry.Digest(t.Context(), host+"/mine:1"); err != nil || got != want {
		t.Errorf("with credentials: %s (%v), want %s", got, err, want)
	}
}
