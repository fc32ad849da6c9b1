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

// pricedCloud is a cloud that returns prices, or some prices with an error.
type pricedCloud struct {
	*conformance.Memory
	prices []provision.Price
	err    error
}

func (p pricedCloud) Prices(context.Context, service.Region) ([]provision.Price, error) {
	return p.prices, p.err
}

// Prices of a remote cloud are returned unchanged, together with the error about other prices. A cloud
// without prices returns none.
func TestPricesThroughMachine(t *testing.T) {
	some := []provision.Price{{Type: "g2-standard-4", Capacity: service.CapacitySpot, PerHour: 0.28, Source: "Google price list, us-central1"}}
	refused := &provision.CredentialsError{Cloud: "gcp", Action: "the Cloud Billing API", Code: "forbidden", Err: errors.New("it is off"), Hint: "enable it"}
	for name, cloud := range map[string]provision.Provider{
		"told": pricedCloud{&conformance.Memory{}, some, nil}, "refused": pricedCloud{&conformance.Memory{}, nil, refused},
		"in part": pricedCloud{&conformance.Memory{}, some, refused}, "none": &conformance.Memory{},
	} {
		var want pricedCloud
		if p, tells := cloud.(pricedCloud); tells {
			want = p
		}
		got, err := client(machine(t, newHandler(cloud))).Prices(t.Context(), "gcp/us-central1")
		if !slices.Equal(got, want.prices) || (err == nil) != (want.err == nil) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
		var requested *provision.CredentialsError
		if want.err != nil && (!errors.As(err, &requested) || requested.Action != refused.Action || requested.Hint != refused.Hint || requested.Error() != refused.Error()) {
			t.Errorf("%s: got %v, want %v", name, err, refused)
		}
	}
}
