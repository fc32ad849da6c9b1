package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"skyserve/internal/testcloud"
	"skyserve/provision/record"
)

// Every call that a cloud receives from a command is in the recording, and no credential is.
func TestCommandsRecordCloudCalls(t *testing.T) {
	e := emulate(t)
	file := filepath.Join(e.dir, "service.yaml")
	if err := os.WriteFile(file, []byte(cloudService), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(e.dir, "calls")
	var received atomic.Int64
	e.mu.Lock()
	e.held = func(testcloud.Call) { received.Add(1) }
	e.mu.Unlock()
	cmd := e.command(e.at("doctor", file)...)
	cmd.Env = append(cmd.Env, record.EnvDir+"="+dir)
	output, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() > exitFailed { // the emulated account has findings
		t.Fatalf("doctor: %v\n%s", err, output)
	}
	recordings, err := record.ReadDir(dir)
	if err != nil || len(recordings) != 1 {
		t.Fatalf("%d recordings (%v), want one\n%s", len(recordings), err, output)
	}
	if got, want := len(recordings[0].Calls), int(received.Load()); got != want {
		t.Errorf("%d calls are recorded, want the %d that the clouds received", got, want)
	}
	var text strings.Builder
	for _, c := range recordings[0].Calls {
		text.WriteString(c.Request.URL + " " + c.Request.Content() + "\n")
	}
	for _, want := range []string{"Action=GetCallerIdentity", "Action=CreateSecurityGroup", "/2013-04-01/hostedzonesbyname", "2010-05-08"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no call has %q:\n%s", want, text.String())
		}
	}
	content, err := os.ReadFile(recordings[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"AKIAEXAMPLE", "key-of-a-client"} {
		if strings.Contains(string(content), secret) {
			t.Errorf("the recording contains %q", secret)
		}
	}
	if !strings.Contains(string(output), "cloud calls in "+recordings[0].Path) {
		t.Errorf("doctor does not name the file:\n%s", output)
	}
}

var recordSample = flag.String("record.sample", "", "directory for recordings of up and down against the emulated clouds")

// TestSampleOfUpIsRecorded records up and down of a service in both clouds with a DNS name, for
// internal/testcloud/replay/testdata/up-down:
//
//	go test ./cmd/skyserve -run SampleOfUp -record.sample DIR
//	gzip -9nc DIR/*-up-*.jsonl >1-up.jsonl.gz; gzip -9nc DIR/*-down-*.jsonl >2-down.jsonl.gz
func TestSampleOfUpIsRecorded(t *testing.T) {
	if *recordSample == "" {
		t.Skip("run with -record.sample DIR to record up and down")
	}
	e := emulate(t)
	service := strings.NewReplacer("aws/eu-west-1", "gcp/us-central1", "{min: 0, max: 0}", "{min: 1, max: 1}").Replace(cloudService)
	for _, args := range [][]string{append(e.upOf(service), "--yes"), e.at("down", "chat", "--yes")} {
		cmd := e.command(args...)
		cmd.Env = append(cmd.Env, record.EnvDir+"="+*recordSample)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args[0], err, out)
		}
	}
}
