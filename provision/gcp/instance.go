package gcp

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
	"skyserve/provision"
)

// defaultDiskGiB is the default size of a disk.
const defaultDiskGiB = 50

// machineScopes restrict the programs on a machine to calling Compute Engine, reading prices and downloading
// the binary, regardless of the roles of the machine's service account. Those of filesScopes may also store files.
var (
	machineScopes = []string{computeScope, billingScope, readingScope}
	filesScopes   = []string{computeScope, billingScope, writingScope}
)

// serviceLabel is the label that List filters by. Labels repeat fields of the note for people and for
// bills, reduced to the characters that labels allow.
const serviceLabel = "skyserve-service"

// The further labels of machines and buckets.
const (
	labelOwner = "skyserve-owner"
	labelID    = "skyserve-id"
	labelKind  = "skyserve-kind"
)

// labelValue converts a value to a valid label.
func labelValue(value string) string { return sanitizeName(value, maxNameLength, "_-") }

// encodeLabel converts a value to a valid label from which decodeLabel restores it: a byte other than a
// lower-case letter, digit or dash becomes an underscore and two hexadecimal digits. A bucket has no note, so
// its labels are the only record of it.
func encodeLabel(value string) string {
	var b strings.Builder
	for _, c := range []byte(value) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return b.String()
}

// decodeLabel returns the value of a label of encodeLabel; empty for any other text.
func decodeLabel(label string) string {
	var value []byte
	for i := 0; i < len(label); i++ {
		if label[i] != '_' {
			value = append(value, label[i])
			continue
		}
		c, err := hex.DecodeString(label[min(i+1, len(label)):min(i+3, len(label))])
		if err != nil || len(c) != 1 {
			return ""
		}
		value = append(value, c[0])
		i += 2
	}
	return string(value)
}

// instanceOf returns the Compute Engine request for a machine in a project.
func (p *Provider) instanceOf(w provision.Desired, n note, project string) (*computepb.Instance, error) {
	text, err := n.text()
	if err != nil {
		return nil, err
	}
	offer := *n.Offering
	labels := map[string]string{
		serviceLabel: labelValue(n.Service), labelOwner: labelValue(n.Owner), labelID: labelValue(n.ID),
		labelKind: labelValue(string(n.Kind)), "skyserve-role": labelValue(string(n.Role)), "skyserve-capacity": labelValue(string(offer.Capacity)),
	}
	key := []string{"machine", n.Service, n.Owner, n.ID, n.SpecHash, n.ImmutableHash, n.BuildHash}
	return &computepb.Instance{
		Params:              params(offer),
		Name:                new(machineName(n.Kind, n.Service, n.ID, key)),
		MachineType:         new(fmt.Sprintf("zones/%s/machineTypes/%s", offer.Zone, offer.Type)),
		Labels:              labels,
		Tags:                &computepb.Tags{Items: []string{n.tag(n.Role, ""), n.tag(n.Role, n.Region.ShortName())}},
		Metadata:            metadata(noteKey, text, metadataUserData, w.Machine.UserData, metadataAttributes, "TRUE", metadataStartup, startupScript, metadataDriver, installDriver(offer)),
		Scheduling:          scheduling(offer),
		ReservationAffinity: affinity(offer),
		Disks:               append([]*computepb.AttachedDisk{disk(w.Machine, offer, labels)}, localSSDs(offer)...),
		ServiceAccounts:     accounts(w.Machine, p.account(n.Service, n.Role, w.Machine.Account, project)),
		NetworkInterfaces:   []*computepb.NetworkInterface{p.nic(offer)},
	}, nil
}

// nic connects a machine to its network, with a public address. Machines with GPUs use gVNIC: A3 machines
// support only that, and the others are faster with it. The images support it.
func (p *Provider) nic(offer provision.Offering) *computepb.NetworkInterface {
	nic := &computepb.NetworkInterface{
		Network:       new("global/networks/" + p.cfg.Network),
		AccessConfigs: []*computepb.AccessConfig{{Type: new(computepb.AccessConfig_ONE_TO_ONE_NAT.String()), Name: new("External NAT")}},
	}
	place := offer.Region.ShortName()
	if subnet := p.cfg.Subnets[place]; subnet != "" {
		nic.Subnetwork = new("regions/" + place + "/subnetworks/" + subnet)
	}
	if offer.GPUs > 0 {
		nic.NicType = new(computepb.NetworkInterface_GVNIC.String())
	}
	return nic
}

// startupScript is run at each boot by Google's guest agent, which all of Google's images contain. It
// installs cloud-init if the image does not contain it. cloud-init reads user-data.
const startupScript = `#!/bin/sh
command -v cloud-init >/dev/null && exit 0
apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install cloud-init && reboot
`

// installDriver returns whether Google's images install NVIDIA's driver if it is missing; empty without GPUs.
func installDriver(offer provision.Offering) string {
	if offer.GPUs == 0 {
		return ""
	}
	return "True"
}

// imageOf returns the boot image of a machine.
func imageOf(m *provision.MachineConfig, offer provision.Offering) string {
	if image := m.ImageFor(offer); image != "" {
		return image
	}
	if offer.GPUs > 0 {
		return imageWithGPU
	}
	return imagePlain
}

// metadata returns the metadata entries of a machine, given as keys and values; those without a value
// are omitted.
func metadata(pairs ...string) *computepb.Metadata {
	m := &computepb.Metadata{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			m.Items = append(m.Items, &computepb.Items{Key: &pairs[i], Value: &pairs[i+1]})
		}
	}
	return m
}

// scheduling sets the provisioning model of a machine. An interrupted spot machine, and a flex-start machine at
// its end, is stopped, not deleted, so that List can report the reason. A machine with GPUs cannot be migrated to another host
// while it runs.
func scheduling(offer provision.Offering) *computepb.Scheduling {
	s := &computepb.Scheduling{
		ProvisioningModel: new("STANDARD"), AutomaticRestart: new(true), OnHostMaintenance: new("MIGRATE"),
	}
	if offer.GPUs > 0 || isSpot(offer) {
		s.OnHostMaintenance = new("TERMINATE")
	}
	switch {
	case isSpot(offer):
		s.ProvisioningModel, s.AutomaticRestart, s.InstanceTerminationAction = new(spotModel), new(false), new("STOP")
	case isFlexStart(offer):
		s.ProvisioningModel, s.AutomaticRestart, s.InstanceTerminationAction = new(flexModel), new(false), new("STOP")
		s.MaxRunDuration = secondsOf(flexRun)
		if offer.LocalSSDs+catalogue.BundledLocalSSDs(offer.Type) > 0 {
			s.OnInstanceStopAction = &computepb.SchedulingOnInstanceStopAction{DiscardLocalSsd: new(true)}
		}
	}
	return s
}

// params limits how long Google looks for the capacity of a flex-start machine: briefly, because other offerings
// follow. Other machines have none.
func params(offer provision.Offering) *computepb.InstanceParams {
	if !isFlexStart(offer) {
		return nil
	}
	return &computepb.InstanceParams{RequestValidForDuration: secondsOf(flexWait)}
}

func secondsOf(d time.Duration) *computepb.Duration {
	return &computepb.Duration{Seconds: new(int64(d / time.Second))}
}

// affinity sets the reservation that a machine uses: the reservation of its offering, or any open
// reservation. A machine that is not reserved uses none.
func affinity(offer provision.Offering) *computepb.ReservationAffinity {
	switch {
	case offer.Capacity != service.CapacityReserved:
		return &computepb.ReservationAffinity{ConsumeReservationType: new("NO_RESERVATION")}
	case offer.Reservation == "":
		return &computepb.ReservationAffinity{ConsumeReservationType: new("ANY_RESERVATION")}
	}
	return &computepb.ReservationAffinity{
		ConsumeReservationType: new("SPECIFIC_RESERVATION"),
		Key:                    new(computeAPI + "/reservation-name"), Values: []string{offer.Reservation},
	}
}

// disk returns the boot disk of a machine, which is deleted with it.
func disk(m *provision.MachineConfig, offer provision.Offering, labels map[string]string) *computepb.AttachedDisk {
	kind, _ := provision.MachineTypeOf(service.CloudGCP, offer.Type)
	return &computepb.AttachedDisk{
		Boot: new(true), AutoDelete: new(true),
		InitializeParams: &computepb.AttachedDiskInitializeParams{
			SourceImage: new(imageOf(m, offer)),
			DiskSizeGb:  new(int64(cmp.Or(m.DiskGiB, defaultDiskGiB))),
			DiskType:    new(fmt.Sprintf("zones/%s/diskTypes/%s", offer.Zone, cmp.Or(kind.Disk, "pd-balanced"))),
			Labels:      labels,
		},
	}
}

// localSSDs returns the local SSDs of a machine besides those of its type. The unit skyserve-disks mounts them.
func localSSDs(offer provision.Offering) []*computepb.AttachedDisk {
	var all []*computepb.AttachedDisk
	for range offer.LocalSSDs {
		all = append(all, &computepb.AttachedDisk{
			Type: new(computepb.AttachedDisk_SCRATCH.String()), Interface: new(computepb.AttachedDisk_NVME.String()), AutoDelete: new(true),
			InitializeParams: &computepb.AttachedDiskInitializeParams{DiskType: new(fmt.Sprintf("zones/%s/diskTypes/%s", offer.Zone, localSSDType))},
		})
	}
	return all
}

// accounts returns the service account of a machine; none without an email address. The scope of
// a replica's service account includes all APIs: only its roles restrict it, for instance to reading
// weights from a bucket.
func accounts(m *provision.MachineConfig, email string) []*computepb.ServiceAccount {
	if email == "" {
		return nil
	}
	scopes := machineScopes
	switch {
	case m.Role == provision.RoleReplica:
		scopes = []string{scope}
	case m.StoresFiles:
		scopes = filesScopes
	}
	return []*computepb.ServiceAccount{{Email: &email, Scopes: scopes}}
}
