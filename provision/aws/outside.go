package aws

// Facts about AWS that this package relies on and that AWS may change, each with its source.

// imagesGPU and imagesPlain are the boot images of machines with and without GPUs, in the order of
// attempts: public parameters of Systems Manager whose values AWS and Canonical keep current. A region that
// lacks a name uses the next. Assumed of all: Ubuntu with cloud-init, /dev/sda1 as root device and, for GPUs,
// NVIDIA's driver and container toolkit.
//
// Sources, read in November 2026: the names follow the rule of docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html.
// base-oss-nvidia-driver-gpu with both releases and base-with-single-cuda with 24.04 occur in public
// repositories; base-with-single-cuda with 22.04 is derived from the rule. Canonical publishes 22.04 with ebs-gp2
// only, and 24.04 with ebs-gp3: documentation.ubuntu.com/aws/aws-how-to/instances/find-ubuntu-images.
var (
	imagesGPU = []string{
		ssmPrefix + "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
		ssmPrefix + "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
		ssmPrefix + "/aws/service/deeplearning/ami/x86_64/base-with-single-cuda-ubuntu-22.04/latest/ami-id",
		ssmPrefix + "/aws/service/deeplearning/ami/x86_64/base-with-single-cuda-ubuntu-24.04/latest/ami-id",
	}
	imagesPlain = []string{
		ssmPrefix + "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id",
		ssmPrefix + "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
	}
)

// ssmPrefix marks an image id that EC2 resolves by a parameter of Systems Manager.
// Source: AWS, "Reference AMIs using Systems Manager parameters", EC2 user guide.
const ssmPrefix = "resolve:ssm:"

// rootDevice is the name of the boot disk of Ubuntu's images.
const rootDevice = "/dev/sda1"

// maxUserData is EC2's limit of user data, in bytes. Source: EC2 user guide, "Run commands at launch".
const maxUserData = 16 << 10

// The partitions of AWS and their domains. Source: "Amazon Resource Names", docs.aws.amazon.com/IAM/latest/UserGuide/reference-arns.html;
// the domains are those of the SDK's endpoint rules of S3 (November 2026).
const (
	partitionChina    = "aws-cn"
	partitionGovCloud = "aws-us-gov"
	domainAWS         = "amazonaws.com"
	domainChina       = "amazonaws.com.cn"
	// objectAddress is the address of an object: bucket, region, domain, key.
	objectAddress = "https://%s.s3.%s.%s/%s"
)

// headerBucketRegion is the header of responses to HeadBucket with the region of the bucket, also with the status
// 301 and 403. Source: "HeadBucket" in the Amazon S3 API Reference, and GetBucketRegion of the SDK, which reads the header
// of responses to requests without credentials (not checked in November 2026).
const headerBucketRegion = "X-Amz-Bucket-Region"

// principalEC2 is the service that assumes the roles of machines. Source: "IAM roles for Amazon EC2", EC2 user guide
// (not checked in November 2026).
const principalEC2 = "ec2.amazonaws.com"

// issuerGoogle is the federated principal of Google's identity tokens, for which AWS needs no identity provider in IAM,
// and the prefix of their condition keys: aud is the claim azp, oaud the claim aud, sub the claim sub. In tokens of a
// service account azp and sub are its unique id. AudienceGoogle is the audience for which machines at Google request
// tokens. Sources, read in November 2026: docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_iam-condition-keys.html,
// "Available keys for AWS OIDC federation"; docs.cloud.google.com/compute/docs/instances/verifying-instance-identity;
// public guides with tokens and trust policies.
const (
	issuerGoogle   = "accounts.google.com"
	AudienceGoogle = "sts.amazonaws.com"
)

// homeRegion is the default region of calls to global APIs and to STS, whose credentials are valid in all regions of its
// partition. Source: "AWS STS Regions and endpoints", IAM user guide (not checked in November 2026).
const homeRegion = "us-east-1"

// quotaService is EC2's code in Service Quotas. The codes of its quotas are in internal/catalogue.
// Source: docs.aws.amazon.com/general/latest/gr/ec2-service.html (not checked in November 2026).
const quotaService = "ec2"

// pricesNear are the regions with the price list API, by the first word of the names of the regions near them. Other regions
// use pricesOther, those of China pricesChina. It is assumed that each price list covers its whole partition. Source:
// docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/price-changes.html (not checked in November 2026).
var pricesNear = map[string]string{"eu": "eu-central-1", "il": "eu-central-1", "me": "eu-central-1", "af": "eu-central-1", "ap": "ap-south-1"}

const (
	pricesOther = "us-east-1"
	pricesChina = "cn-northwest-1"
)

// The names of the price list for the machines that skyserve launches: Linux without a paid licence, shared
// hardware, on demand, per hour. Source: "Using the AWS Price List Query API" in the AWS Billing user guide, and
// public scripts with these values; assumed to be all that distinguishes such machines.
const (
	priceService  = "AmazonEC2"
	priceFormat   = "aws_v1"
	priceSystem   = "Linux"
	priceTenancy  = "Shared"
	priceSoftware = "NA"
	priceStatus   = "Used"
	priceMarket   = "OnDemand"
	priceUnit     = "Hrs"
)
