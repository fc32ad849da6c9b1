package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"skyserve/internal/service"
)

// runLbCommand runs skyserve lb until ctx ends and returns its exit code.
func runLbCommand(ctx context.Context, stderr io.Writer, args ...string) int {
	root := newRoot()
	root.SetArgs(append([]string{"lb"}, args...))
	root.SetOut(io.Discard)
	root.SetErr(stderr)
	return report(ctx, stderr, root.ExecuteContext(ctx))
}

func TestLbTakenPort(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	taken := ln.Addr().String()
	for flag, args := range map[string][]string{
		"--listen": {"--listen", taken, "--admin", "127.0.0.1:0"},
		"--admin":  {"--listen", "127.0.0.1:0", "--admin", taken},
	} {
		var stderr bytes.Buffer
		code := runLbCommand(t.Context(), &stderr, append(args, "--region", "us")...)
		want := fmt.Sprintf("error: listening on %s: address already in use\nhint: ", taken)
		if got := strings.Replace(stderr.String(), "bind: ", "", 1); code != exitFailed || !strings.HasPrefix(got, want) || !strings.Contains(got, "choose another with "+flag) {
			t.Errorf("exit %d, stderr %q, want %q", code, got, want)
		}
	}
}

// An address with an invalid port is not said to be in use.
func TestLbInvalidPort(t *testing.T) {
	var stderr bytes.Buffer
	code := runLbCommand(t.Context(), &stderr, "--region", "us", "--listen", "127.0.0.1:1x", "--admin", "127.0.0.1:0")
	if got := stderr.String(); code != exitFailed || !strings.Contains(got, "hint: --listen: use an address of this machine, and a port from 0 to 65535") || strings.Contains(got, "another process") {
		t.Errorf("exit %d, stderr %q", code, got)
	}
}

// logBuffer is a stderr that can be read while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	line chan string // complete lines
}

func (k *logBuffer) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.text.Write(p)
	for {
		line, err := k.text.ReadString('\n')
		if err != nil {
			k.text.WriteString(line)
			return len(p), nil
		}
		select {
		case k.line <- line:
		default:
		}
	}
}

func TestLbLogsAddressesAndStops(t *testing.T) {
	t.Setenv(envPeerToken, "hunter2")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stderr := &logBuffer{line: make(chan string, 1000)}
	code := make(chan int, 1)
	go func() {
		code <- runLbCommand(ctx, stderr, "--region", "local/us", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
			"--model", "llama=small", "--model", "llama=tiny", "--peer", "eu=http://127.0.0.1:1,rtt=10ms", "--peer", "eu=http://127.0.0.1:2", "--log-level", "debug")
	}()
	listens := regexp.MustCompile(`^balancer lb-us listens on http://127\.0\.0\.1:[1-9][0-9]*, admin on http://127\.0\.0\.1:[1-9][0-9]*\n$`)
	var output []string
	for {
		var line string
		select {
		case line = <-stderr.line:
		case c := <-code:
			t.Fatalf("ended with exit %d after logging:\n%s", c, strings.Join(output, ""))
		}
		output = append(output, line)
		if listens.MatchString(line) {
			break
		}
	}
	cancel()
	if got := <-code; got != exitOK {
		t.Errorf("exit %d", got)
	}
	close(stderr.line)
	for line := range stderr.line {
		output = append(output, line)
	}
	text := strings.Join(output, "")
	if !strings.Contains(text, "msg=draining") || strings.Contains(text, "hunter2") {
		t.Errorf("it output:\n%s", text)
	}
}

func TestLbLogsInJSON(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stderr := &logBuffer{line: make(chan string, 1000)}
	code := make(chan int, 1)
	go func() {
		code <- runLbCommand(ctx, stderr, "--region", "us", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json")
	}()
	select {
	case line := <-stderr.line:
		if !json.Valid([]byte(line)) || !strings.Contains(line, `"msg":"listening"`) {
			t.Errorf("the first line is %s", line)
		}
	case c := <-code:
		t.Fatalf("ended with exit %d", c)
	}
	cancel()
	if got := <-code; got != exitOK {
		t.Errorf("exit %d", got)
	}
	close(stderr.line)
	for line := range stderr.line {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

func TestLbFlags(t *testing.T) {
	f := lbFlags{
		region: "aws/us-east-1", replicas: []string{"http://a:1", "r1=http://b:2"}, peers: []string{"eu=http://c:3", "eu=http://d:4,rtt=90ms"},
		models: []string{"llama=small", "qwen", "llama=tiny"}, loras: []string{"llama=sql", "phi=poems"}, noForward: true, keysFrom: "env:K",
	}
	cfg, err := f.fromFlags()
	if err != nil {
		t.Fatal(err)
	}
	no := false
	want := service.BalancerConfig{
		ID: "lb-us-east-1", Region: "aws/us-east-1",
		Replicas: []service.ReplicaConfig{{URL: "http://a:1"}, {ID: "r1", URL: "http://b:2"}},
		Peers: []service.PeerConfig{
			{ID: "eu", Region: "eu", URL: "http://c:3"},
			{ID: "eu-2", Region: "eu", URL: "http://d:4", EmulateRTT: 90 * time.Millisecond},
		},
		Models:   []service.BalancerModel{{Name: "llama", Aliases: []string{"small", "tiny"}, LoRA: []string{"sql"}}, {Name: "qwen"}, {Name: "phi", LoRA: []string{"poems"}}},
		Balancer: service.BalancerSpec{Forward: &no, Auth: &service.Auth{KeysFrom: "env:K"}},
	}
	if !reflect.DeepEqual(cfg, want) {
		t.Errorf("got  %+v\nwant %+v", cfg, want)
	}
}

func TestConfigFileRejectsFlagsOfItsSettings(t *testing.T) {
	beside := []string{"config", "allow-replicas", "insecure-no-auth", "log-level", "log-format"} // no configuration file has these settings
	newLbCmd().Flags().VisitAll(func(flag *pflag.Flag) {
		if slices.Contains(lbConfigFlags, flag.Name) == slices.Contains(beside, flag.Name) {
			t.Errorf("--%s must be either in lbConfigFlags or a flag beside --config", flag.Name)
		}
	})
}

func TestLbErrorsNameTheFlagOfTheValue(t *testing.T) {
	for _, c := range [][]string{
		{"--max-wait=-1s", "--max-wait: must be at least 1ms, got -1s"},
		{"--max-wait=0s", "--max-wait: must be at least 1ms, got 0s"},
		{"--allow-parameter=nonsense", "--allow-parameter: "},
		{"--memory=1MiB", "--memory: must be at least 256MiB"},
	} {
		var stderr bytes.Buffer
		if code := runLbCommand(t.Context(), &stderr, "--region", "us", c[0]); code != exitUsage || !strings.HasPrefix(stderr.String(), "error: "+c[1]) {
			t.Errorf("%s: exit code %d, %q, want %q", c[0], code, stderr.String(), c[1])
		}
	}
}

// The region of a balancer or a peer has the form that service.yaml requires, or is its name without the cloud.
func TestLbRegionNames(t *testing.T) {
	for _, name := range []string{"us", "us-1", "aws/us-east-1", "static/paris"} {
		if _, err := (&lbFlags{region: name, peers: []string{name + "=http://127.0.0.1:1"}}).fromFlags(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"US WEST", "us_west", "us-", "azure/east", strings.Repeat("u", 41)} {
		for flag, f := range map[string]lbFlags{"--region": {region: name}, "--peer": {region: "us", peers: []string{name + "=http://127.0.0.1:1"}}} {
			if _, err := f.fromFlags(); err == nil || !strings.HasPrefix(err.Error(), flag+": ") {
				t.Errorf("%s %s: got %v", flag, name, err)
			}
		}
	}
}
