// Command emulator is AWS, Route 53 and Google Cloud on this computer, for trying what
// skyserve does in clouds without an account: machines are processes that run skyserve's
// agent at loopback addresses of their own. It needs Linux, and engines of kind sim.
//
//	go run ./examples/clouds/emulator
//
// It prints how to use it, and ends with ctrl-c, with all that it started.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"skyserve/internal/testcloud"
	"skyserve/internal/testcloud/machines"
)

const (
	project = "example" // of Google Cloud
	account = "skyserve-clouds-lb@example.iam.gserviceaccount.com"
	zone    = "example.com" // of Route 53
	vcpus   = 256           // that an account of AWS may have in a region, of each family
)

func main() {
	port := flag.Int("port", 4566, "AWS listens on this port of 127.0.0.1, Google Cloud on the next, what breaks them on the one after")
	program := flag.String("program", "skyserve", "the skyserve that machines run")
	flag.Parse()
	if err := run(*port, *program); err != nil {
		log.Fatal(err)
	}
}

func run(port int, program string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("finding the program for machines: %w", err)
	}
	dir, err := os.MkdirTemp("", "emulator-")
	if err != nil {
		return err
	}
	defer discard(dir)
	var listeners []net.Listener
	for i := range 3 {
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i)))
		if err != nil {
			return err
		}
		defer ln.Close()
		listeners = append(listeners, ln)
	}
	url := func(i int) string { return "http://" + listeners[i].Addr().String() }
	clouds := machines.New(machines.Options{
		Dir: dir, Program: path, Environment: os.Environ(),
		Regions: []string{"us-east-1", "us-west-2", "eu-west-1", "eu-central-1", "ap-northeast-1"}, Project: project,
		Faults: &testcloud.Faults{}, Ended: ended,
	})
	defer clouds.Close()
	clouds.Names.AddZone(zone, false)
	clouds.Google.SetAccount(account, "roles/editor") // of examples/clouds/service.yaml
	clouds.AWS.Defaults = map[string]float64{}
	for _, code := range []string{"L-DB2E81BA", "L-3819A6DF", "L-417A185B", "L-7212CCBC", "L-C4BD4855", "L-1216C47A", "L-34B43A08"} { // G, P and standard instances
		clouds.AWS.Defaults[code] = vcpus
	}
	over := make(chan error, len(listeners))
	for i, h := range []http.Handler{clouds.Amazon(), clouds.Google, control(clouds, path)} {
		server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		go func() { over <- server.Serve(listeners[i]) }()
	}
	usage(url(0), url(1), url(2))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	select {
	case <-ctx.Done():
		return nil
	case err := <-over:
		return err
	}
}

// ended tells of a machine that ended by itself.
func ended(name string, err error, lines string) {
	if err != nil {
		log.Printf("the machine %s: %v\n%s", name, err, lines)
	}
}

// discard removes the disks of machines.
func discard(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		log.Print(err)
	}
}

func usage(amazon, google, control string) {
	fmt.Printf(`The clouds are there. In another terminal:

  export AWS_ACCESS_KEY_ID=emulated AWS_SECRET_ACCESS_KEY=emulated AWS_ENDPOINT_URL=%s GOOGLE_CLOUD_PROJECT=%s
  export SKYSERVE_PROGRAM=%s/skyserve KEYS=key-of-a-client
  skyserve up examples/clouds/service.yaml --endpoint-gcp %s

What can happen to a machine: curl -X POST %s/take/us-east-1-0   (announced, taken 30 s later; ?after=2m)
                              curl -X POST %s/advise/us-east-1-0 (AWS recommends to leave it)
                              curl -X POST %s/vanish/us-east-1-0 (gone without a word)
                              curl %s/machines

Another service wants an account at Google. 'skyserve doctor' prints the commands that create it; here it is run by:

  skyserve doctor service.yaml --endpoint-gcp %s | curl --data-binary @- %s/gcloud
`, amazon, project, control, google, control, control, control, control, google, control)
}

// control breaks machines, serves what they run, and what their clouds tell them.
func control(c *machines.Clouds, program string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /skyserve", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, program) })
	mux.HandleFunc("POST /gcloud", func(w http.ResponseWriter, r *http.Request) {
		commands, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err == nil {
			err = c.Google.Gcloud(string(commands))
		}
		answer(w, "done", err)
	})
	mux.HandleFunc("GET /machines", func(w http.ResponseWriter, _ *http.Request) { answer(w, c.Runs(), nil) })
	mux.HandleFunc("POST /take/{id}", func(w http.ResponseWriter, r *http.Request) {
		after := 30 * time.Second
		if text := r.URL.Query().Get("after"); text != "" {
			var err error
			if after, err = time.ParseDuration(text); err != nil {
				answer(w, "", err)
				return
			}
		}
		name, err := c.Announce(r.PathValue("id"))
		if err == nil {
			time.AfterFunc(after, func() { c.Take(name) })
		}
		answer(w, name, err)
	})
	mux.HandleFunc("POST /advise/{id}", func(w http.ResponseWriter, r *http.Request) {
		name, err := c.Advise(r.PathValue("id"))
		answer(w, name, err)
	})
	mux.HandleFunc("POST /vanish/{id}", func(w http.ResponseWriter, r *http.Request) {
		name, runs := c.Runs()[r.PathValue("id")]
		if !runs {
			answer(w, "", fmt.Errorf("finding the machine of %s: none runs", r.PathValue("id")))
			return
		}
		c.Vanish(name)
		answer(w, name, nil)
	})
	return mux
}

// answer writes a document, or why there is none.
func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // who has gone does not mind
}
