package service

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// No format, log or encoding of a replica contains its key.
func TestSecretIsNeverPrinted(t *testing.T) {
	r := ReplicaConfig{ID: "us-0", APIKey: "env:KEY", Key: "sk-secret"}
	var log strings.Builder
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("attached", "replica", r, "pointer", &r, "key", r.Key)
	}
	asJSON, err := json.Marshal(struct {
		ReplicaConfig
		Open Secret `json:"open"`
	}{r, r.Key})
	if err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		log.String(), string(asJSON), string(asYAML), r.Key.String(),
		fmt.Sprintf("%v %+v %#v %s %q", r, r, r, r.Key, r.Key), fmt.Sprint(&r, []any{r}, map[string]ReplicaConfig{"a": r}),
	} {
		if strings.Contains(text, "sk-secret") {
			t.Errorf("printed %s", text)
		}
	}
	if got := r.Authorization(); got != "Bearer sk-secret" {
		t.Errorf("sent %q", got)
	}
}

func TestParseBearerKey(t *testing.T) {
	for text, want := range map[string]string{
		"sk-1": "sk-1", " sk-1\r\n": "sk-1", "": "error", " \n": "error", "a\nb": "error", "a b": "error", "sk-\x01": "error", "schlüssel": "error", strings.Repeat("x", 5000): "error",
	} {
		key, err := ParseBearerKey(text)
		if got := string(key); (err != nil) != (want == "error") || err == nil && got != want {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
		if err != nil && len(text) > 3 && strings.Contains(err.Error(), text) {
			t.Errorf("the error contains the key: %v", err)
		}
	}
}
