// Command emulator emulates AWS, Route 53 and Google Cloud on this machine, to try skyserve's
// cloud features without an account. VMs are processes that run skyserve's agent on loopback
// addresses of their own. It requires Linux, and engines of kind sim.
//
//	go run ./examples/clouds/emulator
//
// It prints instructions. Ctrl-C stops it and all VMs.
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
	project = "example" // Google Cloud project
	account = "skyserve-clouds-lb@example.iam.gserviceaccount.com"
	zone    = "example.com" // Route 53 hosted zone
	vcpus   = 256           // AWS vCPU quota per region and instance family
)

func main() {
	port := flag.Int("port", 4566, "port of AWS on 127.0.0.1; Google Cloud uses the next port, and fault injection the one after")
	program := flag.String("program", "skyserve", "skyserve binary that VMs run")
	flag.Parse()
	if err := run(*port, *program); err != nil {
		log.Fatal(err)
	}
}

func run(port int, program string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("finding the VMs' skyserve binary: %w", err)
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
		Faults: &testcloud.Faults{}, OnEnded: ended,
	})
	defer clouds.Close()
	clouds.Route53.AddZone(zone, false)
	clouds.Google.CreateServiceAccount(account, "roles/editor") // for examples/clouds/service.yaml
	clouds.AWS.DefaultQuotaLimits = map[string]float64{}
	for _, code := range []string{"L-DB2E81BA", "L-3819A6DF", "L-417A185B", "L-7212CCBC", "L-C4BD4855", "L-1216C47A", "L-34B43A08"} { // G, P and standard instances
		clouds.AWS.DefaultQuotaLimits[code] = vcpus
	}
	serveErrors := make(chan error, len(listeners))
	for i, h := range []http.Handler{clouds.AWSHandler(), clouds.Google, control(clouds, path)} {
		server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		go func() { serveErrors <- server.Serve(listeners[i]) }()
	}
	usage(url(0), url(1), url(2))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	select {
	case <-ctx.Done():
		return nil
	case err := <-serveErrors:
		return err
	}
}

// ended logs a VM whose process ended by itself.
func ended(name string, err error, lines string) {
	if err != nil {
		log.Printf("VM %s: %v\n%s", name, err, lines)
	}
}

// discard removes the VMs' disks.
func discard(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		log.Print(err)
	}
}

func usage(amazon, google, control string) {
	fmt.Printf(`The emulator is running. In another terminal:

  export AWS_ACCESS_KEY_ID=emulated AWS_SECRET_ACCESS_KEY=emulated AWS_ENDPOINT_URL=%s GOOGLE_CLOUD_PROJECT=%s
  export SKYSERVE_PROGRAM=%s/skyserve KEYS=key-of-a-client
  skyserve up examples/clouds/service.yaml --endpoint-gcp %s

Inject faults into a VM: curl -X POST %s/take/us-east-1-0   (interruption with 30 s notice; ?after=2m)
                         curl -X POST %s/advise/us-east-1-0 (AWS rebalance recommendation)
                         curl -X POST %s/vanish/us-east-1-0 (termination without notice)
List VMs:                curl %s/machines

Another service needs a service account at Google. 'skyserve doctor' prints the commands that
create it; this runs them:

  skyserve doctor service.yaml --endpoint-gcp %s | curl --data-binary @- %s/gcloud
`, amazon, project, control, google, control, control, control, control, google, control)
}

// control injects faults into VMs, serves the skyserve binary, and runs gcloud commands.
func control(c *machines.Clouds, program string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /skyserve", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, program) })
	mux.HandleFunc("POST /gcloud", func(w http.ResponseWriter, r *http.Request) {
		commands, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err == nil {
			err = c.Google.RunGcloud(string(commands))
		}
		respond(w, "done", err)
	})
	mux.HandleFunc("GET /machines", func(w http.ResponseWriter, _ *http.Request) { respond(w, c.RunningMachineIDs(), nil) })
	mux.HandleFunc("POST /take/{id}", func(w http.ResponseWriter, r *http.Request) {
		after := 30 * time.Second
		if text := r.URL.Query().Get("after"); text != "" {
			var err error
			if after, err = time.ParseDuration(text); err != nil {
				respond(w, "", err)
				return
			}
		}
		name, err := c.SendInterruptionNotice(r.PathValue("id"))
		if err == nil {
			time.AfterFunc(after, func() { c.InterruptMachine(name) })
		}
		respond(w, name, err)
	})
	mux.HandleFunc("POST /advise/{id}", func(w http.ResponseWriter, r *http.Request) {
		name, err := c.SendRebalanceRecommendation(r.PathValue("id"))
		respond(w, name, err)
	})
	mux.HandleFunc("POST /vanish/{id}", func(w http.ResponseWriter, r *http.Request) {
		name, runs := c.RunningMachineIDs()[r.PathValue("id")]
		if !runs {
			respond(w, "", fmt.Errorf("finding the VM %s: not running", r.PathValue("id")))
			return
		}
		c.TerminateWithoutNotice(name)
		respond(w, name, nil)
	})
	return mux
}

// respond writes a JSON document or an error.
func respond(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may have disconnected
}
