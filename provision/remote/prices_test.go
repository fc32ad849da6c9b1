package remote_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud/conformance"
	"skyserve/provision"
)

// priced is a cloud that tells prices, or some of them and why not the others.
type priced struct {
	*conformance.Memory
	prices []provision.Price
	err    error
}

func (p priced) Prices(context.Context, service.Region) ([]provision.Price, error) {
	return p.prices, p.err
}

// Prices come by way of a machine as its cloud tells them, those that could be read beside
// why others could not; a cloud that tells none has none.
func TestPricesByWayOfAMachine(t *testing.T) {
	some := []provision.Price{{Type: "g2-standard-4", Capacity: service.CapacitySpot, PerHour: 0.28, From: "Google price list, us-central1"}}
	refused := &provision.CredentialsError{Cloud: "gcp", Action: "the Cloud Billing API", Code: "forbidden", Err: errors.New("it is off"), Hint: "enable it"}
	for name, cloud := range map[string]provision.Provider{
		"told": priced{&conformance.Memory{}, some, nil}, "refused": priced{&conformance.Memory{}, nil, refused},
		"in part": priced{&conformance.Memory{}, some, refused}, "none": &conformance.Memory{},
	} {
		var want priced
		if p, tells := cloud.(priced); tells {
			want = p
		}
		got, err := client(machine(t, hand(cloud))).Prices(t.Context(), "gcp/us-central1")
		if !slices.Equal(got, want.prices) || (err == nil) != (want.err == nil) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
		var told *provision.CredentialsError
		if want.err != nil && (!errors.As(err, &told) || told.Action != refused.Action || told.Hint != refused.Hint || told.Error() != refused.Error()) {
			t.Errorf("%s: got %v, want %v", name, err, refused)
		}
	}
}
