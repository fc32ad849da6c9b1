package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision/local"
)

// plan warns of images that machines pull by tag, and not of those whose digest up has recorded.
func TestPlanWarnsOfUnrecordedDigests(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SKYSERVE_HOME", dir)
	spec, err := service.Parse("service.yaml", []byte("name: chat\nmodels: [{name: m, engine: {kind: openai, image: 'mine:1'}}]\nregions: [{name: aws/us-east-1}]\nbalancer: {insecure: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	shows := func(want string) {
		t.Helper()
		var out bytes.Buffer
		if printUnpinned(&out, spec); out.String() != want {
			t.Errorf("printed %q, want %q", out.String(), want)
		}
	}
	shows("chat: warning: the image of m, mine:1, has no recorded digest, and its publisher can move the tag; 'skyserve up' records it\n")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("plan created %v (%v)", entries, err)
	}
	home, err := local.OpenHome()
	if err != nil {
		t.Fatal(err)
	}
	svc, err := home.Service("chat")
	if err == nil {
		err = svc.StoreValue(noteImages, deploy.Images{"mine:1": "mine:1@sha256:" + strings.Repeat("0a", 32)})
	}
	if err != nil {
		t.Fatal(err)
	}
	shows("")
}
