package provision

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"skyserve/internal/service"
)

// LaunchChecker checks launches without making them. A provider implements it if its cloud supports such checks.
type LaunchChecker interface {
	// CheckLaunch checks the launch of w on its single offering and creates nothing. The machine's
	// prerequisites may not exist yet. It does not check capacity: only a launch does.
	CheckLaunch(ctx context.Context, w Desired) LaunchCheck
}

// FilesChecker is a Provider that checks before a launch whether machines could store files in a bucket.
type FilesChecker interface {
	// CheckFiles checks the bucket of w's single grant, of GrantFiles or GrantBackups, and changes nothing.
	CheckFiles(ctx context.Context, w Desired) LaunchCheck
}

// LaunchCheck is the result of checking one launch.
type LaunchCheck struct {
	CheckResult
	// Image is the boot image that the launch would use.
	Image string `json:"image,omitempty"`
	// Err is the error of the check; nil if OK. A *SpecError, *CredentialsError, *BucketTakenError or
	// *BinaryMissingError would also occur with every other offering. After a *CapacityError another
	// offering may succeed. Any other error proves nothing: the launch may succeed.
	Err error `json:"-"`
}

// MarshalJSON adds the former key of Message, as for any CheckResult.
func (c LaunchCheck) MarshalJSON() ([]byte, error) {
	type plain CheckResult
	return json.Marshal(struct {
		plain
		Image      string `json:"image,omitempty"`
		OldMessage string `json:"what"`
	}{plain(c.CheckResult), c.Image, c.Message})
}

// LaunchRejected is the beginning of the error about launches that their cloud would reject.
const LaunchRejected = "checking the launches, before anything is created"

// maxLaunchChecks is the maximum number of concurrent checks.
const maxLaunchChecks = 16

// CheckLaunches checks the launches of machines, and equal launches only once. It checks each on its preferred instance
// type and capacity type, in every zone that has them. It also checks whether binaries can be stored, and the buckets in which machines
// store files. Providers that cannot check launches are skipped. The results are sorted by Where and Message.
func CheckLaunches(ctx context.Context, p MultiCloud, machines []Desired) []LaunchCheck {
	distinct := distinctLaunches(machines)
	results := make([]*LaunchCheck, len(distinct))
	limit := make(chan struct{}, maxLaunchChecks)
	var wg sync.WaitGroup
	for i, w := range distinct {
		check := checkerFor(p[w.Region.Cloud()], w)
		if check == nil {
			continue
		}
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			c := check(ctx, w)
			results[i] = &c
		})
	}
	wg.Wait()
	checks := []LaunchCheck{}
	for _, c := range results {
		if c != nil {
			checks = append(checks, *c)
		}
	}
	slices.SortStableFunc(checks, func(a, b LaunchCheck) int {
		return cmp.Or(cmp.Compare(a.Where, b.Where), cmp.Compare(a.Message, b.Message))
	})
	return checks
}

// checkerFor returns a provider's check of a machine, a binary or an identity; nil if it has none.
func checkerFor(p Provider, w Desired) func(context.Context, Desired) LaunchCheck {
	switch w.Kind {
	case KindBinary:
		if checker, ok := p.(BinaryChecker); ok {
			return checker.CheckBinary
		}
	case KindIdentity:
		if checker, ok := p.(FilesChecker); ok {
			return checker.CheckFiles
		}
	default:
		if checker, ok := p.(LaunchChecker); ok {
			return checker.CheckLaunch
		}
	}
	return nil
}

// launchShape contains the properties of a launch on which its check depends. Launches of one shape are equal.
type launchShape struct {
	role                               Role
	region                             service.Region
	zone, instance, reservation, image string
	capacity                           service.CapacityType
	disk                               int
}

// distinctLaunches returns one launch for each shape, each with a single offering, the binaries, and the identities
// that may store files.
func distinctLaunches(machines []Desired) []Desired {
	var all []Desired
	seen := map[launchShape]bool{}
	for _, w := range machines {
		if w.Binary != nil {
			all = append(all, w)
		}
		for _, g := range w.Grants { // each bucket is checked by itself
			if _, stores := g.StoredFolder(); stores {
				single := w
				single.Grants = []Grant{g}
				all = append(all, single)
			}
		}
		if w.Machine == nil || len(w.Offerings) == 0 {
			continue
		}
		first := w.Offerings[0]
		for _, o := range w.Offerings {
			if o.Type != first.Type || o.Capacity != first.Capacity || o.Reservation != first.Reservation || o.Region != first.Region {
				continue
			}
			s := launchShape{w.Machine.Role, w.Region, o.Zone, o.Type, o.Reservation, w.Machine.ImageFor(o), o.Capacity, w.Machine.DiskGiB}
			if seen[s] {
				continue
			}
			seen[s] = true
			single := w
			single.Offerings = Offerings{o}
			all = append(all, single)
		}
	}
	return all
}

// DescribeLaunch describes a checked launch in a message: launching a replica on g6.xlarge (spot) in us-east-1a.
func DescribeLaunch(w Desired) string {
	o := w.Offerings[0]
	return strings.TrimSuffix("launching a "+string(w.Machine.Role)+" on "+o.Type+" ("+string(o.Capacity)+") in "+o.Zone, " in ")
}
