package gcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
)

// Doctor checks the prerequisites of a launch and creates nothing. After a finding that prevents all
// further checks it makes no more checks.
func (p *Provider) Doctor(ctx context.Context) []provision.CheckResult {
	project, err := p.readProject(ctx)
	if err != nil {
		return append([]provision.CheckResult{failedFinding(service.CloudGCP, err)}, p.checkClock()...)
	}
	findings := []provision.CheckResult{{Where: service.CloudGCP, OK: true, Message: "project " + project.GetName() + " is accessible"}}
	findings = append(findings, p.checkClock()...)
	network := p.checkNetwork(ctx)
	findings = append(findings, p.checkPermissions(ctx), network)
	findings = append(findings, p.checkAccounts(ctx)...)
	for _, image := range []string{imagePlain, imageWithGPU} {
		findings = append(findings, p.checkImage(ctx, image))
	}
	for _, place := range p.cfg.Regions {
		findings = append(findings, p.checkRegion(ctx, place))
		if network.OK {
			findings = append(findings, p.checkSubnet(ctx, place))
		}
	}
	return findings
}

// failedFinding returns the finding of a failed check.
func failedFinding(where string, err error) provision.CheckResult {
	f := provision.CheckResult{Where: where, Message: err.Error()}
	var denied *provision.CredentialsError
	if errors.As(err, &denied) {
		f.Hint = denied.Hint
	}
	return f
}

func (p *Provider) checkNetwork(ctx context.Context) provision.CheckResult {
	client, project, err := newClient(ctx, p, compute.NewNetworksRESTClient)
	if err != nil {
		return failedFinding(service.CloudGCP, err)
	}
	_, err = client.Get(ctx, &computepb.GetNetworkRequest{Project: project, Network: p.cfg.Network})
	switch {
	case isMissing(err):
		return provision.CheckResult{
			Where: service.CloudGCP, Message: "network not found: " + p.cfg.Network,
			Hint: "create it (gcloud compute networks create " + p.cfg.Network + " --subnet-mode=auto), or set regions[].network to an existing network",
		}
	case err != nil:
		return failedFinding(service.CloudGCP, wrapError(err, "reading network %s", p.cfg.Network))
	}
	return provision.CheckResult{Where: service.CloudGCP, OK: true, Message: "network " + p.cfg.Network + " exists"}
}

// checkSubnet checks the subnet for machines of a region: the configured subnet, or the subnet with the
// network's name, which exists in networks in automatic mode.
func (p *Provider) checkSubnet(ctx context.Context, place string) provision.CheckResult {
	client, project, err := newClient(ctx, p, compute.NewSubnetworksRESTClient)
	where, name := string(regionID(place)), cmp.Or(p.cfg.Subnets[place], p.cfg.Network)
	if err != nil {
		return failedFinding(where, err)
	}
	found, err := client.Get(ctx, &computepb.GetSubnetworkRequest{Project: project, Region: place, Subnetwork: name})
	switch {
	case isMissing(err) || err == nil && path.Base(found.GetNetwork()) != p.cfg.Network:
		return provision.CheckResult{
			Where: where, Message: fmt.Sprintf("network %s has no subnet %s in this region", p.cfg.Network, name),
			Hint: "set regions[].subnets to an existing subnet, or create one: gcloud compute networks subnets create NAME --network " + p.cfg.Network + " --region " + place + " --range 10.0.0.0/20",
		}
	case err != nil:
		return failedFinding(where, wrapError(err, "reading subnet %s", name))
	}
	return provision.CheckResult{Where: where, OK: true, Message: "subnet " + name + " exists"}
}

func (p *Provider) checkImage(ctx context.Context, image string) provision.CheckResult {
	client, _, err := newClient(ctx, p, compute.NewImagesRESTClient)
	if err != nil {
		return failedFinding(service.CloudGCP, err)
	}
	project, family := strings.Split(image, "/")[1], path.Base(image)
	found, err := client.GetFromFamily(ctx, &computepb.GetFromFamilyImageRequest{Project: project, Family: family})
	if err != nil {
		return failedFinding(service.CloudGCP, wrapError(err, "finding the current image of image family %s", family))
	}
	return provision.CheckResult{Where: service.CloudGCP, OK: true, Message: "boot image " + found.GetName()}
}

func (p *Provider) checkRegion(ctx context.Context, place string) provision.CheckResult {
	where := string(regionID(place))
	region, err := p.readRegion(ctx, place)
	if err != nil {
		return failedFinding(where, err)
	}
	return provision.CheckResult{Where: where, OK: true, Message: "region exists with " + printable.Count(len(region.GetZones()), "zone")}
}
