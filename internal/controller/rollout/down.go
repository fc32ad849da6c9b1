package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/goccy/go-yaml"

	"skyserve/provision"
	"skyserve/provision/local"
)

// freePatience is how long a process may take to notice that its object file is
// gone and to end: what a damaged state directory leaves behind stops itself.
const freePatience = local.DefaultGrace + 3*time.Second

// Down stops every process of a service, makes sure that they are gone, and
// removes its state. It works with whatever is left of the state directory. The
// caller holds the lock of the service. A *provision.LeftoverError lists what
// could not be removed; the state directory then stays, unless purge is set,
// for as long as a process is in it.
func Down(ctx context.Context, svc local.Service, grace time.Duration, purge bool, progress provision.Progress) error {
	have, err := svc.Objects()
	if err != nil {
		return err
	}
	ports := portsOf(svc, have)
	unnamed := unpublish(ctx, svc) // first, so that nobody is led to what is about to end
	provider := local.NewProvider(svc, "", "", grace)
	_, failure := provision.Apply(ctx, provision.Diff(nil, have), provider, provision.Options{Progress: progress})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	left := leftObjects(svc, failure)
	if unnamed != nil {
		left = append(left, unnamed.Error())
	}
	if len(left) > 0 && !purge {
		return &provision.LeftoverError{Service: svc.Name(), Left: left}
	}
	if err := svc.Remove(); err != nil {
		left = append(left, err.Error())
	}
	left = append(left, waitFree(ctx, ports)...)
	if err := svc.Home().Tidy(ctx); err != nil {
		left = append(left, err.Error())
	}
	if len(left) > 0 {
		return &provision.LeftoverError{Service: svc.Name(), Left: left}
	}
	return nil
}

// portsOf are the addresses of what no object file stands for any more, by id.
// What has an object file is known to be gone when its lock is.
func portsOf(svc local.Service, have []provision.Object) map[string][]string {
	ports := svc.Ports()
	for _, o := range have {
		delete(ports, o.ID)
	}
	return ports
}

// leftObjects describes the objects that are still there.
func leftObjects(svc local.Service, failure error) []string {
	if failure == nil {
		return nil
	}
	left := []string{failure.Error()}
	objects, err := svc.Objects()
	if err != nil {
		return append(left, err.Error())
	}
	for _, o := range objects {
		if o.Gone == "" {
			left = append(left, fmt.Sprintf("%s, process %s", o.ID, o.Handle))
		}
	}
	return left
}

// waitFree waits until the ports are free and describes those that are not.
func waitFree(ctx context.Context, ports map[string][]string) []string {
	ctx, cancel := context.WithTimeout(ctx, freePatience)
	defer cancel()
	for {
		var left []string
		for _, id := range ids(ports) {
			for _, addr := range ports[id] {
				if local.PortTaken(addr) {
					left = append(left, fmt.Sprintf("%s, where %s listened, is in use", addr, id))
				}
			}
		}
		if len(left) == 0 || !pause(ctx, lookEvery) {
			return left
		}
	}
}

// NameIn is the service that an argument names: a service.yaml that exists is
// read for its name, which needs no more of it to be right; anything else is
// the name itself.
func NameIn(arg string) (string, error) {
	if ext := filepath.Ext(arg); ext != ".yaml" && ext != ".yml" {
		return arg, nil
	}
	text, err := os.ReadFile(arg)
	if err != nil {
		return "", fmt.Errorf("reading the service's name: %w", err)
	}
	var spec struct {
		Name string `yaml:"name"`
	}
	if err := yaml.Unmarshal(text, &spec); err != nil {
		return "", fmt.Errorf("reading the service's name in %s: %w", arg, err)
	}
	if spec.Name == "" {
		return "", fmt.Errorf("reading %s: %w", arg, errors.New("name: missing"))
	}
	return spec.Name, nil
}
