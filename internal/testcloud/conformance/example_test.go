package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud/conformance"
	"skyserve/provision"
)

// exampleAPI is the API of a small GPU cloud: instances with unique names and labels. It has no firewalls
// and no identities. It stands for the HTTP client of a real provider.
type exampleAPI struct {
	mu        sync.Mutex
	instances map[string]map[string]string // labels by name
}

var errNameTaken = errors.New("the name is taken")

func (a *exampleAPI) create(ctx context.Context, name string, labels map[string]string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if a.instances[name] != nil {
		return errNameTaken
	}
	a.instances[name] = labels
	return nil
}

func (a *exampleAPI) remove(ctx context.Context, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	delete(a.instances, name)
	return nil
}

func (a *exampleAPI) list() map[string]map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]map[string]string{}
	for name, labels := range a.instances {
		all[name] = labels
	}
	return all
}

// exampleProvider is the smallest provider for such a cloud: docs/adding-a-provider.md explains it.
type exampleProvider struct{ api *exampleAPI }

var _ provision.Provider = exampleProvider{}

// exampleOffering is the only machine of the cloud.
func exampleOffering(region service.Region) provision.Offering {
	return provision.Offering{Type: "gpu_1x_l4", Region: region, Capacity: service.CapacityOnDemand, GPU: "L4", GPUs: 1, VCPUs: 8, PricePerHour: 0.5}
}

// Offerings returns the catalogue's machines of the region.
func (exampleProvider) Offerings(_ context.Context, region service.Region) (provision.Offerings, error) {
	return provision.Offerings{exampleOffering(region)}, nil
}

// List reads everything about an object from its labels.
func (p exampleProvider) List(_ context.Context, name string) ([]provision.Object, error) {
	var all []provision.Object
	for handle, l := range p.api.list() {
		if name == "" || l["service"] == name {
			all = append(all, objectOf(handle, l))
		}
	}
	return all, nil
}

func objectOf(handle string, l map[string]string) provision.Object {
	o := provision.Object{
		ID: l["id"], Kind: provision.ObjectKind(l["kind"]), Service: l["service"], Owner: l["owner"], Region: service.Region(l["region"]),
		SpecHash: l["spec"], ImmutableHash: l["fixed"], Handle: handle,
	}
	offering := exampleOffering(o.Region)
	o.Offering, o.CostPerHour = &offering, offering.PricePerHour
	return o
}

// Launch is idempotent because the name of an instance follows from the object, and the cloud rejects a
// second instance with the same name.
func (p exampleProvider) Launch(ctx context.Context, w provision.Desired) (provision.Object, error) {
	if !w.Kind.IsMachine() {
		return provision.Object{}, fmt.Errorf("creating %s: the cloud has no objects of kind %s", w.ID, w.Kind)
	}
	name := strings.Join([]string{"skyserve", w.Service, w.ID}, "-")
	labels := map[string]string{
		"id": w.ID, "kind": string(w.Kind), "service": w.Service, "owner": w.Owner, "region": string(w.Region), "spec": w.SpecHash, "fixed": w.ImmutableHash,
	}
	err := p.api.create(ctx, name, labels)
	if errors.Is(err, errNameTaken) {
		labels, err = p.api.list()[name], nil
		if labels["owner"] != w.Owner {
			return provision.Object{}, &provision.OwnedError{Resource: "service " + w.Service, Where: string(w.Region), Owner: labels["owner"]}
		}
	}
	return objectOf(name, labels), err
}

// Terminate is idempotent because the cloud accepts the removal of what does not exist.
func (p exampleProvider) Terminate(ctx context.Context, o provision.Object) error {
	return p.api.remove(ctx, o.Handle)
}

// The provider of docs/adding-a-provider.md conforms.
func TestExampleProviderConforms(t *testing.T) {
	const region = "example/east"
	machine := func(name, id string) provision.Desired {
		return provision.Desired{
			ID: id, Kind: provision.KindReplica, Service: name, Owner: "owner", Region: region, SpecHash: "s", ImmutableHash: "f",
			Offerings: provision.Offerings{exampleOffering(region)}, Machine: &provision.MachineConfig{Role: provision.RoleReplica}, CostPerHour: 0.5,
		}
	}
	conformance.Run(t, func(*testing.T) conformance.Subject {
		api := &exampleAPI{instances: map[string]map[string]string{}}
		return conformance.Subject{
			Provider: exampleProvider{api}, Reopen: func(*testing.T) provision.Provider { return exampleProvider{api} },
			Service: "chat", Desired: []provision.Desired{machine("chat", "east-0"), machine("chat", "east-1")}, Other: machine("other", "east-0"), HasOwners: true,
		}
	})
}
