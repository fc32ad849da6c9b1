package gcp

import (
	"cmp"
	"fmt"

	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/internal/service"
	"skyserve/provision"
)

// The boot images, by family, so that the current one of each is taken: with the
// drivers of NVIDIA, and without. Google gives the former up two years after it is made
// and says when: this one in August 2028.
const (
	imageWithGPU = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
	imagePlain   = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
)

// defaultDiskGiB is the size of a disk where none is asked for.
const defaultDiskGiB = 50

// machineScopes let the programs of a machine call Compute Engine and read prices, and
// nothing else, whatever roles its account has.
var machineScopes = []string{computeScope, billingScope}

// serviceLabel is the label that lists go by. Labels hold what is in the note in letters that
// labels may have, for people and for bills.
const serviceLabel = "skyserve-service"

// labelled is a value as a label can hold it.
func labelled(value string) string { return plain(value, longestName, "_-") }

// instanceOf is a machine as Compute Engine is asked for it
// in a project.
func (p *Provider) instanceOf(w provision.Want, n note, project string) (*computepb.Instance, error) {
	text, err := n.text()
	if err != nil {
		return nil, err
	}
	offer := *n.Offering
	labels := map[string]string{
		serviceLabel: labelled(n.Service), "skyserve-owner": labelled(n.Owner), "skyserve-id": labelled(n.ID),
		"skyserve-kind": labelled(string(n.Kind)), "skyserve-role": labelled(string(n.Role)), "skyserve-capacity": labelled(string(offer.Capacity)),
	}
	key := []string{"machine", n.Service, n.Owner, n.ID, n.Spec, n.Fixed, n.Build}
	return &computepb.Instance{
		Name:                new(machineName(n.Kind, n.Service, n.ID, key)),
		MachineType:         new(fmt.Sprintf("zones/%s/machineTypes/%s", offer.Zone, offer.Type)),
		Labels:              labels,
		Tags:                &computepb.Tags{Items: []string{n.tag(n.Role, ""), n.tag(n.Role, n.Region.Place())}},
		Metadata:            metadata(noteKey, text, "user-data", w.Machine.UserData, "enable-guest-attributes", "TRUE", "startup-script", startupScript),
		Scheduling:          scheduling(offer),
		ReservationAffinity: affinity(offer),
		Disks:               []*computepb.AttachedDisk{disk(w.Machine, offer, labels)},
		ServiceAccounts:     accounts(n.Role, p.account(n.Service, n.Role, w.Machine.Account, project)),
		NetworkInterfaces:   []*computepb.NetworkInterface{p.nic(offer)},
	}, nil
}

// nic joins a machine to its network, with an address in the world. A3 machines take
// gVNIC alone, and all machines with GPUs are faster with it; the images have it.
func (p *Provider) nic(offer provision.Offering) *computepb.NetworkInterface {
	nic := &computepb.NetworkInterface{
		Network:       new("global/networks/" + p.cfg.Network),
		AccessConfigs: []*computepb.AccessConfig{{Type: new(computepb.AccessConfig_ONE_TO_ONE_NAT.String()), Name: new("External NAT")}},
	}
	place := offer.Region.Place()
	if subnet := p.cfg.Subnets[place]; subnet != "" {
		nic.Subnetwork = new("regions/" + place + "/subnetworks/" + subnet)
	}
	if offer.GPUs > 0 {
		nic.NicType = new(computepb.NetworkInterface_GVNIC.String())
	}
	return nic
}

// startupScript is run by Google's own agent at each boot, which all of its images have.
// cloud-init, which reads user-data, is in those of Ubuntu and not in all others.
const startupScript = `#!/bin/sh
command -v cloud-init >/dev/null && exit 0
apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install cloud-init && reboot
`

// metadata is the entries of a machine, given as keys and values; those without a
// value are left out.
func metadata(pairs ...string) *computepb.Metadata {
	m := &computepb.Metadata{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			m.Items = append(m.Items, &computepb.Items{Key: &pairs[i], Value: &pairs[i+1]})
		}
	}
	return m
}

// scheduling says how a machine is paid for and what becomes of it. A spot machine that is
// taken away is stopped, not deleted, so that List can tell why it went. A machine
// with GPUs cannot be moved to another host while it runs.
func scheduling(offer provision.Offering) *computepb.Scheduling {
	s := &computepb.Scheduling{
		ProvisioningModel: new("STANDARD"), AutomaticRestart: new(true), OnHostMaintenance: new("MIGRATE"),
	}
	if offer.GPUs > 0 || isSpot(offer) {
		s.OnHostMaintenance = new("TERMINATE")
	}
	if isSpot(offer) {
		s.ProvisioningModel, s.AutomaticRestart, s.InstanceTerminationAction = new(spotModel), new(false), new("STOP")
	}
	return s
}

// affinity says which reservation a machine uses: the one that the offering names, or
// any that is open; a machine that is not to be reserved leaves them to others.
func affinity(offer provision.Offering) *computepb.ReservationAffinity {
	switch {
	case offer.Capacity != service.CapacityReserved:
		return &computepb.ReservationAffinity{ConsumeReservationType: new("NO_RESERVATION")}
	case offer.Reservation == "":
		return &computepb.ReservationAffinity{ConsumeReservationType: new("ANY_RESERVATION")}
	}
	return &computepb.ReservationAffinity{
		ConsumeReservationType: new("SPECIFIC_RESERVATION"),
		Key:                    new("compute.googleapis.com/reservation-name"), Values: []string{offer.Reservation},
	}
}

// disk is the boot disk of a machine, which goes with it.
func disk(m *provision.Machine, offer provision.Offering, labels map[string]string) *computepb.AttachedDisk {
	image := imagePlain
	if offer.GPUs > 0 {
		image = imageWithGPU
	}
	return &computepb.AttachedDisk{
		Boot: new(true), AutoDelete: new(true),
		InitializeParams: &computepb.AttachedDiskInitializeParams{
			SourceImage: new(cmp.Or(m.Image, image)),
			DiskSizeGb:  new(int64(cmp.Or(m.DiskGiB, defaultDiskGiB))),
			DiskType:    new(fmt.Sprintf("zones/%s/diskTypes/pd-balanced", offer.Zone)),
			Labels:      labels,
		},
	}
}

// accounts is the service account that a machine of a role runs as; none is nobody. What a replica
// may do with one, such as reading weights from a bucket, its roles alone say: its scope holds all
// others.
func accounts(role provision.Kind, email string) []*computepb.ServiceAccount {
	if email == "" {
		return nil
	}
	scopes := machineScopes
	if role == provision.KindReplica {
		scopes = []string{scope}
	}
	return []*computepb.ServiceAccount{{Email: &email, Scopes: scopes}}
}
