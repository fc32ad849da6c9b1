package gcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/internal/service"
	"skyserve/provision"
)

var _ provision.LaunchChecker = (*Provider)(nil)

// launchPermissions are those of balancerPermissions that creating an instance requires in the project.
// Permissions on subnets are often granted for a subnet only, and are left to doctor. A permission that is
// granted under a condition on names counts as missing.
var launchPermissions = []string{
	"compute.disks.create", "compute.disks.setLabels", "compute.instances.create",
	"compute.instances.setLabels", "compute.instances.setMetadata", "compute.instances.setTags",
}

// launchHint is the next step after missing permissions of a launch.
const launchHint = "grant a role with this permission, such as Compute Instance Admin (v1)"

// launchState collects the results of the checks of one launch.
type launchState struct {
	image     string
	unchecked []string // what the caller may not read
}

// CheckLaunch checks what a launch refers to, because Compute Engine has no dry run: the permissions, the
// boot image, the machine type and its GPUs in the zone. What the caller may not read
// is not checked, as the message says, and is no reason to reject a launch.
func (p *Provider) CheckLaunch(ctx context.Context, w provision.Desired) provision.LaunchCheck {
	c := provision.LaunchCheck{CheckResult: provision.CheckResult{Where: string(w.Region), Message: provision.DescribeLaunch(w)}}
	s := &launchState{}
	for _, check := range []func(context.Context, provision.Desired, *launchState) error{
		p.checkLaunchPermissions, p.checkLaunchImage, p.checkLaunchType,
	} {
		if err := check(ctx, w, s); err != nil {
			c.Err = fmt.Errorf("checking the launch: %w", err)
			c.Message += ": " + err.Error()
			var denied *provision.CredentialsError
			if errors.As(err, &denied) {
				c.Hint = denied.Hint
			}
			return c
		}
	}
	c.OK, c.Image = true, s.image
	c.Message += ": no problem found, boot image " + s.image
	if len(s.unchecked) > 0 {
		c.Message += "; not checked: " + strings.Join(s.unchecked, ", ")
	}
	return c
}

// skip records that a read was denied; it returns any other error.
func (s *launchState) skip(what string, err error) error {
	if r, ok := refusalOf(err); ok && r.status == http.StatusForbidden {
		s.unchecked = append(s.unchecked, what+" (reading it is denied)")
		return nil
	}
	return err
}

// checkLaunchPermissions checks the caller's permissions in the project.
func (p *Provider) checkLaunchPermissions(ctx context.Context, w provision.Desired, s *launchState) error {
	required := append([]string{}, launchPermissions...)
	session, err := p.openSession(ctx)
	if err != nil {
		return wrapError(err, "checking the permissions")
	}
	if p.account(w.Service, w.Machine.Role, w.Machine.Account, session.project) != "" {
		required = append(required, setAccount)
	}
	granted, err := p.grantedPermissions(ctx, required)
	if err != nil {
		return s.skip("permissions", err)
	}
	missing := difference(required, granted)
	if len(missing) == 0 {
		return nil
	}
	return &provision.CredentialsError{
		Cloud: service.CloudGCP, Action: strings.Join(missing, ", "), Hint: launchHint,
		Err: fmt.Errorf("project %s does not grant it", session.project),
	}
}

// checkLaunchImage checks that the boot image exists and may be used.
func (p *Provider) checkLaunchImage(ctx context.Context, w provision.Desired, s *launchState) error {
	offer := w.Offerings[0]
	ref := imageOf(w.Machine, offer)
	s.image = path.Base(ref)
	image, err := p.readImage(ctx, ref)
	if err != nil && !isMissing(err) {
		return s.skip("boot image "+ref, wrapError(err, "reading boot image %s", ref))
	}
	problem := ""
	if isMissing(err) {
		problem = "not found"
	} else if state := image.GetDeprecated().GetState(); state == stateObsolete || state == stateDeleted {
		problem = "is " + strings.ToLower(state) + ", and Compute Engine launches nothing with it"
	}
	if problem != "" {
		key := provision.ImageKeys(offer)[0]
		return &provision.SpecError{Err: fmt.Errorf("boot image %s: %s; set regions[].images.%s of %s to an image that the project can use", ref, problem, key, w.Region)}
	}
	s.image = image.GetName()
	return nil
}

// readImage reads an image, or the current image of a family.
func (p *Provider) readImage(ctx context.Context, ref string) (*computepb.Image, error) {
	client, _, err := newClient(ctx, p, compute.NewImagesRESTClient)
	if err != nil {
		return nil, err
	}
	_, name, _ := strings.Cut(ref, "projects/")
	project, name, _ := strings.Cut(name, "/global/images/")
	if family, ok := strings.CutPrefix(name, "family/"); ok {
		return client.GetFromFamily(ctx, &computepb.GetFromFamilyImageRequest{Project: project, Family: family})
	}
	return client.Get(ctx, &computepb.GetImageRequest{Project: project, Image: name})
}

// checkLaunchType checks that the zone has the machine type and its GPUs.
func (p *Provider) checkLaunchType(ctx context.Context, w provision.Desired, s *launchState) error {
	offer := w.Offerings[0]
	if offer.Zone == "" {
		return nil
	}
	client, project, err := newClient(ctx, p, compute.NewMachineTypesRESTClient)
	if err != nil {
		return wrapError(err, "listing machine types")
	}
	filter := fmt.Sprintf("name eq %q", offer.Type)
	for t, err := range client.List(ctx, &computepb.ListMachineTypesRequest{Project: project, Zone: offer.Zone, Filter: &filter}).All() {
		if err != nil {
			return s.skip("machine type", wrapError(err, "listing the machine types of %s", offer.Zone))
		}
		if t.GetName() != offer.Type {
			continue
		}
		for _, a := range t.GetAccelerators() {
			if err := p.checkAccelerator(ctx, offer, a.GetGuestAcceleratorType(), s); err != nil {
				return err
			}
		}
		return nil
	}
	return unavailable(offer, "MACHINE_TYPE_NOT_FOUND", "zone %s does not have machine type %s", offer.Zone, offer.Type)
}

// checkAccelerator checks that the zone has the GPU of a machine type.
func (p *Provider) checkAccelerator(ctx context.Context, offer provision.Offering, name string, s *launchState) error {
	client, project, err := newClient(ctx, p, compute.NewAcceleratorTypesRESTClient)
	if err != nil {
		return wrapError(err, "reading GPU type %s", name)
	}
	_, err = client.Get(ctx, &computepb.GetAcceleratorTypeRequest{Project: project, Zone: offer.Zone, AcceleratorType: name})
	switch {
	case err == nil:
		return nil
	case isMissing(err):
		return unavailable(offer, "ACCELERATOR_TYPE_NOT_FOUND", "zone %s does not have GPU type %s of %s", offer.Zone, name, offer.Type)
	}
	return s.skip("GPU type "+name, wrapError(err, "reading GPU type %s in %s", name, offer.Zone))
}

// unavailable reports that a launch would fail in a zone and may succeed elsewhere. The codes of checks are
// skyserve's own.
func unavailable(offer provision.Offering, code, format string, args ...any) error {
	return &provision.CapacityError{Offering: offer, Scope: provision.ScopeZone, Code: code, Err: fmt.Errorf(format, args...)}
}
