package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/proxy"
)

// A killed balancer leaves an incomplete last line: the lines before it are replayed, and a warning
// reports the truncation.
func TestReplayOfTruncatedRecord(t *testing.T) {
	p, err := policy.New("cost")
	if err != nil {
		t.Fatal(err)
	}
	var record bytes.Buffer
	rt, err := proxy.New(proxy.Options{
		Self: service.BalancerConfig{Service: "chat", ID: "lb-us-0", Region: "local/us"}, Core: core.DefaultConfig(p), Record: &record,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	record.WriteString("{\"t\":1,\"event\":{\"kind\":\"tick\"}}\n{\"t\":2,\"eve")
	file := filepath.Join(t.TempDir(), "r.jsonl")
	if err := os.WriteFile(file, record.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	if err := runReplay(context.Background(), &simReplayOptions{profile: "l4-llama3.1-8b", speed: 1, seeds: 1, output: outputFlags{output: "table"}}, file, &out, &errOut); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "1 step replayed") || !strings.Contains(errOut.String(), "ends in the middle of a line") {
		t.Errorf("printed %q to stdout, %q to stderr", out.String(), errOut.String())
	}
}
