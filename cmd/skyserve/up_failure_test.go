package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/provision/local"
)

// The logs of a service have nothing about engines that the user starts.
func TestUpHintWhileEnginesAreDown(t *testing.T) {
	for region, want := range map[service.Region]string{"static/paris": "start yours at the addresses in endpoints", "local/us": "'skyserve logs chat' why it is not"} {
		u := &upRun{spec: &service.Spec{Name: "chat", Regions: []service.RegionSpec{{Name: region}}}}
		hint := u.afterFailure(&deploy.NotReadyError{Waiting: []string{"paris-0"}})
		if !strings.Contains(hint, want) || strings.Contains(hint, "skyserve logs") != (region == "local/us") {
			t.Errorf("%s: %s", region, hint)
		}
	}
}

// For failures that a retry does not fix, the hint of `up` names another command.
func TestUpHintsAfterPermanentFailure(t *testing.T) {
	u := &upRun{up: &up{upOptions: &upOptions{file: "chat.yaml"}}, spec: &service.Spec{Name: "chat"}}
	for name, tt := range map[string]struct {
		err  error
		hint string
	}{
		"agent of an earlier version": {
			fmt.Errorf("handing over to lb-us-east-1-0: %w", &agent.StatusError{Status: 400, Message: `reading the request: json: unknown field "memory"`}),
			"skyserve up chat.yaml --program URL",
		},
		"changed key": {
			errors.Join(errors.New("another"), fmt.Errorf("reading the key of lb-us-east-1-0 (i-1): %w", &identity.PinError{Want: "a", Found: "b"})),
			"skyserve up chat.yaml --replace ID",
		},
		"other error": {errors.New("no response"), "'skyserve up chat.yaml' retries"},
	} {
		var coded *exitError
		if err := u.applyError(t.Context(), tt.err); !errors.As(err, &coded) || coded.code != exitPartial || !strings.Contains(coded.hint, tt.hint) {
			t.Errorf("%s: got %+v, want exit %d and %q", name, coded, exitPartial, tt.hint)
		}
	}
}

// `up -o json` prints a document for a failure also if the service is in clouds.
func TestFailedUpPrintsDocument(t *testing.T) {
	for name, localService := range map[string]*local.Service{"in clouds": nil, "on this computer": {}} {
		var out bytes.Buffer
		u := &upRun{up: &up{upOptions: &upOptions{file: "chat.yaml", format: outputFormat{kind: outputJSON}}, out: &out, errOut: io.Discard}, spec: &service.Spec{Name: "chat"}, changes: &deploy.MachinePlan{}}
		u.clouds.localService = localService
		err := u.applyError(t.Context(), errors.New("no network"))
		var document struct {
			Service, Error string
			Ready          *bool
		}
		if e := json.Unmarshal(out.Bytes(), &document); e != nil || document.Service != "chat" || document.Error != "no network" || document.Ready == nil || *document.Ready || err == nil {
			t.Errorf("%s: %v, %v\n%s", name, err, e, &out)
		}
	}
}

// The error for an unreadable record of balancers contains the next step.
func TestReadEnrolmentsNamesBrokenFile(t *testing.T) {
	svc := storedService(t, "")
	if err := os.WriteFile(filepath.Join(svc.Dir(), "balancers.json"), []byte(`[{"id":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := deploy.ReadEnrolments(svc); err == nil || !strings.Contains(err.Error(), filepath.Join(svc.Dir(), "balancers.json")) || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("got %v, want the file and what to do", err)
	}
}

// All missing variables and files of service.yaml are reported at once, before the confirmation.
func TestUpReportsMissingSecrets(t *testing.T) {
	testkit.NotUnderRace(t, "takes minutes under the race detector; other tests cover the same code")
	t.Parallel()
	e := emulate(t)
	text := strings.NewReplacer("env:KEYS", "env:KEYS_THAT_ARE_NOT_SET", "insecure: true", "tls: {cert: /no/cert.pem, key: /no/key.pem}").Replace(oneRegion)
	out := e.skyserve(exitUsage, e.upOf(text)...)
	for _, want := range []string{"balancer.auth.keys_from: reading env:KEYS_THAT_ARE_NOT_SET", "balancer.tls.cert: reading file:/no/cert.pem", "balancer.tls.key", "hint: export the variables"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "billed") || len(e.aws.Machines()) > 0 {
		t.Errorf("%d machines\n%s", len(e.aws.Machines()), out)
	}
	if remaining, err := filepath.Glob(filepath.Join(e.dir, "home", "services", "*")); err != nil || len(remaining) > 0 {
		t.Errorf("%q remains, %v", remaining, err)
	}
}

// An `up` that could start no process has failed, and is not partly done. It reports a cause that all machines share once.
func TestUpThatStartsNothingFails(t *testing.T) {
	home := t.TempDir()
	t.Setenv("SKYSERVE_HOME", home)
	if err := os.WriteFile(filepath.Join(home, "bin"), nil, 0o600); err != nil { // no binary can be installed
		t.Fatal(err)
	}
	file := filepath.Join(home, "chat.yaml")
	text := fmt.Sprintf("name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: local/us, replicas: {min: 3, max: 3}}]\nlocal: {port: %d}\n", testkit.LocalPort())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	code := execute(t.Context(), []string{"up", file}, &out, &errOut)
	hint := "hint: nothing was started; correct the cause, then: skyserve up " + file + "\n"
	if code != exitFailed || strings.Count(errOut.String(), "installing the skyserve binary") != 1 || !strings.Contains(errOut.String(), hint) {
		t.Errorf("exit code %d, want %d, printed\n%s", code, exitFailed, &errOut)
	}
}
