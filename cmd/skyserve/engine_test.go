package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
)

// engineError runs skyserve engine with an address and returns its error.
func engineError(ctx context.Context, args ...string) (stderr string, err error) {
	root := newRoot()
	var out bytes.Buffer
	root.SetErr(&out)
	root.SetArgs(append([]string{"engine"}, args...))
	err = root.ExecuteContext(ctx)
	return out.String(), err
}

func TestEngineOnATakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = engineError(context.Background(), "--listen", taken.Addr().String())
	var ee *exitError
	if !errors.As(err, &ee) || ee.code != exitFailed || ee.hint == "" {
		t.Fatalf("error %v, want exit code %d with a hint", err, exitFailed)
	}
	if want := fmt.Sprintf("listening on %s: ", taken.Addr()); !strings.HasPrefix(err.Error(), want) || strings.Count(err.Error(), taken.Addr().String()) != 1 {
		t.Errorf("error %q, want %q and the cause", err, want)
	}
}

func TestEngineStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	stderr, err := engineError(ctx, "--listen", "127.0.0.1:0")
	if err != nil || !strings.Contains(stderr, "http://127.0.0.1:") {
		t.Errorf("stderr %q, error %v", stderr, err)
	}
}
