//go:build unix

package probe

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// engineVariable makes a process of this test's binary serve engines: their number, and the size of
// their pages.
const engineVariable = "SKYSERVE_PROBE_ENGINES"

// The engines are a separate process, so that their CPU time is not counted as the prober's.
func init() {
	var n, size int
	if _, err := fmt.Sscan(os.Getenv(engineVariable), &n, &size); err != nil {
		return
	}
	if err := runEngines(n, vllmPage(size)); err != nil {
		fmt.Fprintln(os.Stderr, "engines:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runEngines listens on n addresses, prints them, and serves until stdin ends.
func runEngines(n int, page []byte) error {
	metrics := wholeAnswer(page)
	var addresses []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addresses = append(addresses, l.Addr().String())
		go func() {
			for {
				nc, err := l.Accept()
				if err != nil {
					return
				}
				go answerEach(nc, metrics)
			}
		}()
	}
	if err := json.NewEncoder(os.Stdout).Encode(addresses); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// startEngines starts the process and returns the engines' addresses.
func startEngines(b *testing.B, n, size int) (addresses []string) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env, cmd.Stderr = append(os.Environ(), fmt.Sprintf("%s=%d %d", engineVariable, n, size)), os.Stderr
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		b.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	if err := json.NewDecoder(stdout).Decode(&addresses); err != nil {
		b.Fatalf("hearing the engines: %v", err)
	}
	return addresses
}

// cpuTime returns the CPU time of this process, user and system.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkProbe512 measures the processor time of probing 512 engines in another process at the
// default interval, without the balancer's core. One iteration is an interval, in which each is
// probed once.
func BenchmarkProbe512(b *testing.B) {
	const replicas = 512
	for _, size := range []int{300, 30 << 10, 60 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			addresses := startEngines(b, replicas, size)
			var probes, bad atomic.Int64
			round := make(chan struct{}, 1)
			p := New(Options{Sink: func(ev core.Event) {
				if !ev.Report.Ready || !ev.Report.Pending.Known {
					bad.Add(1)
				}
				if probes.Add(1)%replicas == 0 {
					select {
					case round <- struct{}{}:
					default:
					}
				}
			}})
			defer p.Close()
			for i, a := range addresses {
				p.Start(service.ReplicaConfig{ID: strconv.Itoa(i), URL: "http://" + a, Model: "m", Kind: service.EngineVLLM})
			}
			for range 3 {
				<-round // connections are made
			}
			cpu, n, began := cpuTime(b), probes.Load(), time.Now()
			for b.Loop() {
				<-round
			}
			used, took := cpuTime(b)-cpu, time.Since(began)
			if bad.Load() > 0 {
				b.Errorf("%d reports say nothing of the engine", bad.Load())
			}
			done := float64(probes.Load() - n)
			b.ReportMetric(float64(used.Microseconds())/done, "us/probe")
			b.ReportMetric(100*used.Seconds()/took.Seconds(), "%core")
			b.ReportMetric(done/took.Seconds(), "probes/s")
		})
	}
}
