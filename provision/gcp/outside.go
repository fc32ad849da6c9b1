package gcp

import (
	"regexp"
	"sync"
	"time"
)

// Facts about Google Cloud that this package relies on and that Google may change, each with its source.

// The boot images with and without NVIDIA's drivers, by image family: machines boot the current image of
// the family.
//
// Sources: public scripts that boot imageWithGPU, read in November 2026; Google lists its families at
// docs.cloud.google.com/deep-learning-vm/docs/images, and Ubuntu's at docs.cloud.google.com/compute/docs/images/os-details.
// That the image contains driver 580 is assumed from its name.
const (
	imageWithGPU = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
	imagePlain   = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
)

// The keys of instance metadata that Google's own software on a machine reads.
//
// metadataDriver with the value True makes an image of the Deep Learning VM family install NVIDIA's driver at
// the first boot, without which its images ask a person at the first login. Source: public scripts that set it
// for this family, read in November 2026; Google describes it at docs.cloud.google.com/deep-learning-vm/docs/cli.
// metadataUserData is read by cloud-init,
// metadataStartup and metadataAttributes by the guest agent.
const (
	metadataDriver     = "install-nvidia-driver"
	metadataUserData   = "user-data"
	metadataStartup    = "startup-script"
	metadataAttributes = "enable-guest-attributes"
)

// The names and values of Cloud Storage's JSON API that this package relies on. Source: the discovery document of
// storage v1 (google.golang.org/api/storage/v1, storage-api.json), read in November 2026, except:
// storageClass by docs.cloud.google.com/storage/docs/storage-classes, roleReader, roleFiles and memberPrefix by
// docs.cloud.google.com/storage/docs/access-control/iam-roles, policyVersion (the first with conditions) by
// docs.cloud.google.com/iam/docs/policies.
const (
	storagePath          = "/storage/v1/"
	storageClass         = "STANDARD"
	publicAccessEnforced = "enforced"
	roleReader           = "roles/storage.objectViewer"
	roleFiles            = "roles/storage.objectUser"
	memberPrefix         = "serviceAccount:"
	policyVersion        = 3
	// defaultLocation is the location of a bucket if the regions are unknown.
	defaultLocation = "us-central1"
)

// contentType is the type of a binary in a bucket.
const contentType = "application/octet-stream"

// The states of a deprecated image with which Compute Engine creates no disk.
// Source: docs.cloud.google.com/compute/docs/images/deprecate-custom, read in November 2026.
const (
	stateObsolete = "OBSOLETE"
	stateDeleted  = "DELETED"
)

// The hosts of the APIs, which also name the APIs in commands and conditions. Source: the discovery document of each
// API, as in google.golang.org/api (November 2026).
const (
	computeAPI         = "compute.googleapis.com"
	resourceManagerAPI = "cloudresourcemanager.googleapis.com"
	iamAPI             = "iam.googleapis.com"
	billingAPI         = "cloudbilling.googleapis.com"
	storageAPI         = "storage.googleapis.com"
)

// The scopes of access tokens. scope includes all APIs: Compute Engine, the test of the caller's
// permissions, and prices. Machines of a service use computeScope, billingScope for prices, and readingScope to
// download the binary, or writingScope to store files too. Source: the discovery documents, and docs.cloud.google.com/storage/docs/authentication.
const (
	scope        = "https://www.googleapis.com/auth/cloud-platform"
	computeScope = "https://www.googleapis.com/auth/compute"
	billingScope = "https://www.googleapis.com/auth/cloud-billing.readonly"
	readingScope = "https://www.googleapis.com/auth/devstorage.read_only"
	writingScope = "https://www.googleapis.com/auth/devstorage.read_write"
)

// accountSuffix is the end of the email addresses of a project's service accounts. Source:
// docs.cloud.google.com/iam/docs/service-account-overview (not read again).
const accountSuffix = ".iam.gserviceaccount.com"

// The identities of machines in another cloud. Sources, read in November 2026: the discovery documents of iam v1
// (ServiceAccount.uniqueId), iamcredentials v1, sts v1 and cloudresourcemanager v1; docs.cloud.google.com/compute/docs/instances/verifying-instance-identity
// (metadataToken); docs.cloud.google.com/iam/docs/workload-identity-federation-with-other-clouds (the type of AWS's tokens, and
// the attribute aws_role of the default mapping: the ARN of an assumed role without the name of its session).
const (
	stsAPI            = "sts.googleapis.com"
	impersonationAPI  = "iamcredentials.googleapis.com"
	tokenTypeAWS      = "urn:ietf:params:aws:token-type:aws4_request"
	metadataToken     = "instance/service-accounts/default/identity"
	roleFederated     = "roles/iam.workloadIdentityUser"
	federatedAudience = "//" + iamAPI + "/"
	federatedMember   = "principalSet://" + iamAPI + "/"
)

// spotModel is Compute Engine's provisioning model of interruptible machines. Source: the discovery document of
// Compute Engine v1, Scheduling.provisioningModel (November 2026).
const spotModel = "SPOT"

// flexModel is the provisioning model of flex-start machines, and statusPending their state while Google looks for
// capacity. Google deletes a machine without capacity after flexWait, which must be from 90 seconds to two hours,
// and stops it flexRun after its start, which is the maximum. Sources, read in November 2026: the discovery
// document of Compute Engine v1 (Scheduling, InstanceParams, Instance.status);
// cloud.google.com/compute/docs/instances/about-flex-start-vms; docs.cloud.google.com/compute/docs/instances/instance-lifecycle;
// cloud.google.com/blog/products/compute/introducing-flex-start-vms-for-the-compute-engine-instance-api; public scripts that
// set automaticRestart to false and use no reservation, which is assumed to be required.
const (
	flexModel     = "FLEX_START"
	statusPending = "PENDING"
	flexWait      = 90 * time.Second
	flexRun       = 7 * 24 * time.Hour
)

// The states of a machine in which it starts, stops or does not run. Source: the discovery document of Compute Engine
// v1, Instance.status (November 2026), except PENDING_STOP, which is assumed.
const (
	statusProvisioning   = "PROVISIONING"
	statusStaging        = "STAGING"
	statusPendingStop    = "PENDING_STOP"
	statusStopping       = "STOPPING"
	statusStopped        = "STOPPED"
	statusTerminated     = "TERMINATED"
	statusDeprovisioning = "DEPROVISIONING"
	statusSuspending     = "SUSPENDING"
	statusSuspended      = "SUSPENDED"
)

// priceService is the id of Compute Engine in Cloud Billing. Source: public scripts that read the list (November
// 2026).
const priceService = "services/6F81-5844-456A"

// The usage types and units of SKUs of machines. Google describes the fields at
// docs.cloud.google.com/billing/docs/reference/rest/v1/services.skus; the values are assumed.
const (
	usageOnDemand = "OnDemand"
	usageSpot     = "Preemptible"
	unitHour      = "h"
	unitGiBHour   = "GiBy.h"
)

// The descriptions of the SKUs of catalogue machines. Commitments, reservations, custom machines and
// families with longer names have other descriptions. The newest GPUs are listed without "Nvidia".
// Google publishes no rule for descriptions: the patterns are assumed from the list. That flex-start is listed as
// DWS Defined Duration, on demand, is from public scripts that read the list (November 2026).
var (
	describesMachine = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)^(spot preemptible |dws defined duration )?(e2|g2|a2|a3|a3ultra) (?:instances? )?(core|ram) running in `)
	})
	describesGPU = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)^(?:nvidia )?(?:tesla )?(l4|a100|h100(?: 80gb)?|h200(?: 141gb)?) gpu (attached to spot preemptible vms |attached to dws defined duration vms )?running in `)
	})
)

// flexMachine and flexGPU are the words for flex-start in describesMachine and describesGPU.
const (
	flexMachine = "dws defined duration "
	flexGPU     = "attached to dws defined duration vms "
)

// otherMetrics are the quotas, except those of GPU types, that launches count against, and spotQuotaPrefix is the
// start of the names of the quotas for spot GPUs. Quotas of GPU types are in internal/catalogue. Source: the
// discovery document of Compute Engine v1, Quota.metric (November 2026).
var otherMetrics = []metric{
	{"CPUS", "machines without GPUs", "vcpus"},
	{"CPUS_ALL_REGIONS", "vCPUs of all regions together", "vcpus"},
	{"SSD_TOTAL_GB", "disks", "gb"},
	{"HDB_TOTAL_GB", "Hyperdisk Balanced disks", "gb"},
	{localSSDQuota, "local SSDs", "gb"},
	{spotLocalSSDQuota, "local SSDs of spot machines", "gb"},
	{"IN_USE_ADDRESSES", "public addresses", "addresses"},
	{"GPUS_ALL_REGIONS", "GPUs of all regions together", "gpus"},
}

const (
	spotQuotaPrefix   = "PREEMPTIBLE_"
	localSSDQuota     = "LOCAL_SSD_TOTAL_GB"
	spotLocalSSDQuota = spotQuotaPrefix + "LOCAL_SSD_GB"
)

// localSSDType is the type of a local SSD, which is a scratch disk. Source: the discovery document of Compute Engine
// v1, AttachedDisk, and docs.cloud.google.com/compute/docs/disks/add-local-ssd (November 2026). The content of a local
// SSD is lost at a stop: a machine with one that Google stops at the end of its run must permit that
// (Scheduling.onInstanceStopAction; the documentation of Terraform's provider says that only true is supported).
const localSSDType = "local-ssd"
