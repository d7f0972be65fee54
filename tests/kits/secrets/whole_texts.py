# ruff: noqa: E501 - a table whose rows are read as they are written
"""Whole texts in which a secret has no name of its own, or has it by its place: files, commands, headers, keys, people."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

from kits.secrets.kinds import Dice, Made
from kits.secrets.notations import unescaped

TEXTS = r"""
apiVersion: v1\ndata:\n  db: {b64pw}\n  token: {b40}\nkind: Secret\nmetadata:\n  name: x
kind: Secret\nstringData:\n  mode: {pw}\ntype: x
{\n "kind": "Secret",\n "data": {\n  "mode": "{b64pw}"\n },\n "apiVersion": "v1"\n}
users:\n- name: x\n  user:\n    client-key-data: {b120}
    client-key-data: >-\n      {b64}\n      {b56}\n    other: y
users:\n- name: x\n  user:\n    tls.key: {b120}
    tls.key: >-\n      {b64}\n      {b56}\n    other: y
users:\n- name: x\n  user:\n    .dockerconfigjson: {b120}
    .dockerconfigjson: >-\n      {b64}\n      {b56}\n    other: y
users:\n- name: x\n  user:\n    ssh-privatekey: {b120}
    ssh-privatekey: >-\n      {b64}\n      {b56}\n    other: y
postgresql://svc:{qpw}@db.example.com/x
redis://:{qpw}@cache:6379/0
https://bob:{qpw}@git.example.com/r.git
mongodb+srv://app:{qpw}@c0.example.net
amqp%3A%2F%2Fapp%3A{qpw}%40mq%3A5672
curl -u bob:{pw} https://x
mysql -u root -p{pw} -h db
docker login -u bob -p {pw} nvcr.io
sshpass -p {pw} ssh host
sshpass -p{pw} ssh host
redis-cli -h db -a {pw} ping
requests.get(url, auth=('bob', '{pw}'))
auth=HTTPBasicAuth('bob', '{pw}')
Cookie: session={pw}; theme=dark
cookies={'session': '{pw}'}
machine x login bob password {pw}
requirepass {pw}
Password for bob: {pw}
openssl rsa -passin pass:{pw} -in x
az login -u bob -p {pw}
keytool -storepass {pw} -list
kubectl create secret generic x --from-literal=mode={pw}
ldapsearch -x -D cn=bob -w {pw} -b dc=x
{Host:db Password:{pw} Port:5432}
:password => '{pw}'
password := "{pw}"
my_pw: '{pw}'
<password value="{pw}"/>
<entry key="db.password">{pw}</entry>
password: &anchor {pw}
password: !!str {pw}
ENV DB_PASSWORD {pw}
DB_PASSWORD\t{pw}
  db_password        {pw}
echo {pw} | docker login --password-stdin
smbclient //h/s -U bob%{pw}
htpasswd -b file bob {pw}
pass: {pw}
- value: {pw}\n  name: DB_PASSWORD
passwords:\n  - other\n  - {pw}
psql 'host=db password={pw} sslmode=require'
$env:DB_PASSWORD = '{pw}'
<add key="Password" value="{pw}" />
PASSWORD = {pw}
wandb login --relogin {x40}
wandb login --host https://w.example.com {x40}
wandb: API key: {x40}
--key {b32} --lr 1
Authorization: Basic {b32}
"auth": "{b32}"
X-Api-Key: {b32}
_authToken={b32}
https://x.webhook.office.com/webhookb2/00000000-0000-0000-0000-000000000005/IncomingWebhook/{x32}/y
https://discord.com/api/webhooks/123456789/{a68}
https://x.blob.core.windows.net/c?sv=2024&sig={a40}%3D&sp=r
https://b.s3.amazonaws.com/k?X-Amz-Signature={x64}
opened /home/{user}/data/train.bin
opened /Users/{user}/x
/scratch/{user}/run/train.py:12
/fsx/{user}/ckpt
/u/{user}/src/x.py
/checkpoint/{user}/job
/afs/cs.example.edu/user/z/zz/{user}/x
/tmp/torchinductor_{user}/ab/x.py
/mnt/lustre/home/{user}/x
/lustre/fs1/users/{user}/y
ssh -o BatchMode=yes {user}@gpu-a017 hostname
scp x {user}@gpu-a017:/y
USER={user}
LOGNAME={user}
uid=1004({user}) gid=100(users)
SLURM_JOB_USER={user}
C:\\Users\\{user}\\x
{"user": "{user}"}
%2Fhome%2F{user}%2Fx
mail {mail}@example.com now
Cloning https://oauth2:{a32}@gitlab.corp/x/y.git
fatal: unable to access 'https://{x40}@github.com/x/y.git/': 403
Looking in indexes: https://__token__:{a32}@pypi.corp/simple
DefaultEndpointsProtocol=https;AccountName=acc;AccountKey={b86}==;EndpointSuffix=core.windows.net
Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={b43}=
https://acc.blob.core.windows.net/c/ckpt?sv=2022-11-02&ss=b&srt=co&sp=r&se=2026-01-01T00%3A00%3A00Z&sig={a42}%3D
https://storage.googleapis.com/b/o?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Expires=60&X-Goog-Signature={x512}
Authorization: AWS4-HMAC-SHA256 Credential=AKIAX/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature={x64}
aws_session_token = {b700}
aws configure set aws_secret_access_key {b40}
    http://127.0.0.1:8888/lab?token={x48}
[I 2026 ServerApp] http://node7:8888/tree?token={x48}\n     or http://127.0.0.1:8888/tree?token={x48}
otpauth://totp/ACME:alice?secret={t32}&issuer=ACME
scan otpauth://totp/x?issuer=A&secret={t16}
*:*:*:bob:{pw}
machine api.wandb.ai login user password {x40}
machine api.wandb.ai\n  login user\n  password {x40}
apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\ndata:\n  username: YQ==\n  foo: {b64pw}
apiVersion: v1\ndata:\n  foo: {b64pw}\nkind: Secret\nmetadata:\n  name: s
{"apiVersion": "v1", "data": {"foo": "{b64pw}"}, "kind": "Secret"}
kind: Secret\nstringData:\n  foo: {pw}
{\n "auths": {\n  "https://index.docker.io/v1/": {\n   "auth": "{basic}"\n  }\n }\n}
{"auths": {"nvcr.io": {"username": "$oauthtoken", "password": "{pw}"}}}
[Interface]\nPrivateKey = {b43}=\nAddress = 10.0.0.1/32
alice:$2y$10${h53}
Cookie: session={a32}; theme=dark
Set-Cookie: sid={a32}; Path=/; HttpOnly
{'Cookie': 'theme=dark; session={a32}'}
Authorization: Bearer {a32}
headers={'Authorization': 'Bearer {a32}', 'Accept': '*/*'}
curl -H "Authorization: Bearer {a32}" https://x
> Authorization: token {x40}
Authorization: Basic {basic}
Proxy-Authorization: Basic {basic}
PRIVATE-TOKEN: {a32}
aiohttp.BasicAuth(login='bob', password='{pw}')
+ wandb login {x40}
wandb login --relogin --host https://w.corp {x40}
wandb.login(key='{x40}')
huggingface-cli login --token {a32}
echo {pw} | docker login -u bob --password-stdin nvcr.io
helm registry login -u bob -p '{pw}' reg
podman pull --creds bob:{pw} reg/x
skopeo copy --src-creds=bob:{pw} docker://a dir:b
curl --user 'bob:{pw}' https://x
wget --user bob --password {pw} https://x
wget --http-user=bob --http-password={pw} https://x
ldapsearch -x -D cn=a -w {pw} -b dc=x
mount -t cifs -o username=bob,password={pw} //h/s /mnt
openssl rsa -in k.pem -passin pass:{pw}
openssl enc -aes-256-cbc -k {pw} -in a
gpg --batch --passphrase {pw} -d x.gpg
zip -P {pw} a.zip b
7z x -p{pw} a.7z
htpasswd -b /etc/htpasswd bob {pw}
echo 'bob:{pw}' | chpasswd
echo '{pw}' | sudo -S apt install x
Password: {pw}
[sudo] password for alice: {pw}
Enter passphrase for key '/root/.ssh/id_rsa': {pw}
kubectl create secret generic s --from-literal=foo={pw}
kubectl create secret docker-registry r --docker-server=x --docker-username=bob --docker-password={pw}
kubectl --token={a32} get pods
az login --service-principal -u bob -p {pw} --tenant t
vault kv put secret/x password={pw}
[default]\nsecret_key = {a32}\nhost_base = x
[remote]\ntype = s3\npass = {a32}
secret_access_key = {a32}
account default\nuser bob\npassword {pw}
AUTH {pw}
[client]\nuser=bob\npassword={pw}
CREATE USER 'bob'@'%' IDENTIFIED BY '{pw}';
ALTER ROLE bob WITH PASSWORD '{pw}';
    server.login('bob@corp.com', '{pw}')
AUTH PLAIN {basic}
send: 'AUTH PLAIN {basic}\\r\\n'
ftp> PASS {pw}
a1 LOGIN bob {pw}
    ssh.connect(host, username='bob', password='{pw}')
snowflake.connector.connect(user='bob', password='{pw}', account='x')
ansible-playbook x.yml -e 'ansible_become_pass={pw}'
databases:\n  - host: a\n    user: b\n    password: {pw}\n  - host: c\n    password: {pw}
db: {host: a, user: b, password: {pw}, port: 1}
password:\n  value: {pw}\n  from: vault
{"credentials": {"user": "bob", "x": "{pw}"}}
{"api_keys": ["{a32}", "{x40}"]}
SENTRY_DSN=https://{x32}@o123.ingest.sentry.io/456
comet_ml.init(api_key='{a32}')
neptune.init_run(project='x', api_token='{a32}')
api {\n  credentials {"access_key" = "{a32}"\n "secret_key" = "{x40}"}\n}
MLFLOW_TRACKING_URI=https://bob:{qpw}@mlflow.corp
http_proxy=http://bob:{qpw}@proxy.corp:3128\nHTTPS_PROXY=http://bob:{qpw}@proxy.corp:3128
'api-key': '{a32}'
python x.py --secret {a32}
tool -apikey {a32}
prog --key {a32} --n 3
SLURM_JWT={a32}
MUNGE:{b160}:
echo {pw} | kinit alice@CORP
node7/unix:10  MIT-MAGIC-COOKIE-1  {x32}
storage token: {a32}{a32}
SSH_PRIVATE_KEY={b400}
TF_VAR_db_password={pw}
root  812  0.0  /usr/bin/python t.py --db-password {pw} --x 1
python\0t.py\0--db-password\0{pw}\0--x\01
HOME=/root\0DB_PASSWORD={pw}\0X=1\0
DEBUG botocore.auth Signature:\n{x64}
DEBUG urllib3 https://api.x:443 "GET /v1?api_key={x40} HTTP/1.1" 200
INFO httpx HTTP Request: GET https://api.x/v1?key={x40} "HTTP/1.1 200 OK"
  Value error [type=value_error, input_value={'password': '{pw}'}, input_type=dict]
DictConfig({'db': {'password': '{pw}'}})
password                  {pw}
db_password ..................... {pw}
  wandb_api_key ................................... {x40}
  3%|x | 3/100 [00:01<00:30] password={pw}
PASSWORD={pw}\r\nX=1\r
password\t{pw}
password = "{pw} {pw}"
# password: {pw}
storage_options={'key': '{a32}', 'secret': '{x40}'}
boto3.client('s3', aws_access_key_id='x', aws_secret_access_key='{a32}')
b'{"password": "{pw}"}'
machine h.io login bob password {qpw}
db1.prod:5432:train:bob:{qpw}
bob:$apr1${a8}${h22}
bob:$6${a16}${h86}:19000:0:99999:7:::
bob:$y$j9T${a22}${h43}:19000:0:99999:7:::
$argon2id$v=19$m=65536,t=3,p=4${b22}${b43}
otpauth://totp/ACME:bob?secret={t32}&issuer=ACME
redis://:{qpw}@redis-0.redis:6379/0
broker=rediss://default:{qpw}@r.x.io:6380
mongodb+srv://bob:{qpw}@cluster0.ab1cd.mongodb.net/db?retryWrites=true
sqlalchemy.url = postgresql+psycopg2://bob:{qpw}@db:5432/train
mysql://root:{qpw}@10.0.0.3/x
amqp://guest:{qpw}@mq//
smb://corp;bob:{qpw}@fs1/share
wget ftp://bob:{qpw}@ftp.x.io/d.tar
https_proxy=http://bob:{qpw}@proxy.corp:3128
postgres://bob:{a6}@{a6}#{a3}@db:5432/x
snowflake://bob:{qpw}@acct/db/schema?warehouse=wh
git clone https://{a40}@github.com/acme/x.git
git clone https://oauth2:{a30}@gitlab.x.io/a/b.git
Looking in indexes: https://bob:{a30}@pypi.corp/simple
https://conda.anaconda.org/t/ac-{x36}/acme/linux-64
dsn=https://{x32}@o4501.ingest.sentry.io/4505
jdbc:postgresql://db:5432/x?user=bob&password={qpw}&ssl=true
jdbc:sqlserver://db:1433;databaseName=x;user=sa;password={qpw};encrypt=true
jdbc:oracle:thin:bob/{a30}@//db:1521/x
DRIVER={ODBC Driver 18};SERVER=db;UID=sa;PWD={qpw};
host=db user=bob password={qpw} dbname=train
DefaultEndpointsProtocol=https;AccountName=x;AccountKey={b86}==;EndpointSuffix=core.windows.net
https://x.blob.core.windows.net/c/b?sv=2022-11-02&ss=b&se=2026-01-01&sp=rl&sig={a43}%3D
https://b.s3.amazonaws.com/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20260101T000000Z&X-Amz-Expires=900&X-Amz-Signature={x64}
https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIA{t16}%2F20260101%2Fus-east-1%2Fs3%2Faws4_request
https://b.s3.amazonaws.com/k?X-Amz-Security-Token={qpw}&x=1
https://b.s3.amazonaws.com/k?AWSAccessKeyId=AKIAEXAMPLE&Expires=1790000000&Signature={qpw}
https://storage.googleapis.com/b/o?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Signature={x512}
https://d1.cloudfront.net/x?Expires=1790000000&Signature={u340}__&Key-Pair-Id=K2
> Authorization: Basic {basic}
{'Authorization': 'Basic {basic}'}
Authorization: Digest username="bob", realm="x", nonce="y", uri="/", response="{x32}"
Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/us/s3/aws4_request, SignedHeaders=host, Signature={x64}
> Cookie: theme=dark; sessionid={a30}; lang=en
< Set-Cookie: _xsrf=2|{x8}|{x32}|{d10}; Path=/; HttpOnly
cookies={'JSESSIONID': '{U32}'}
{"auths": {"nvcr.io": {"auth": "Ym9iO{a41}=="}}}
data:\n  .dockerconfigjson: eyJhdXRocyI6IHsibnZjci5pbyI6IHsidXNlcm5hbWUiOiAiJG9hdXRodG9rZW4iLCAicGFzc3dvcmQiOiAi{a54}J9fX0=\nkind: Secret\ntype: kubernetes.io/dockerconfigjson
apiVersion: v1\nkind: Secret\nmetadata:\n  name: train\ntype: Opaque\ndata:\n  username: Ym9i\n  db: {b64pw}\n  other: {a40}
kubeadm join 10.0.0.1:6443 --token {l6}.{l16} --discovery-token-ca-cert-hash sha256:00
mysql -h db -u root -p{qpw} train
curl -sf -u bob:{qpw} https://x.y/z
curl --user 'bob:{qpw}' https://x.y/z
sshpass -p {qpw} ssh bob@h1 uptime
redis-cli -h r -a {qpw} ping
docker login -u '$oauthtoken' -p {a30} nvcr.io
+ echo {a30}\n+ docker login -u bob --password-stdin nvcr.io
echo {a30} | docker login -u bob --password-stdin nvcr.io
sudo -S mount /x <<< {qpw}
echo '{qpw}' | sudo -S systemctl restart nvidia-fabricmanager
huggingface-cli login --token {a30} --add-to-git-credential
from_pretrained('x', use_auth_token='{a30}')
openssl rsa -in k.pem -passin pass:{qpw}
gpg --batch --passphrase {qpw} -d f.gpg
mount -t cifs -o username=bob,password={qpw},vers=3.0 //fs/x /mnt
mc alias set minio http://m:9000 minioadmin {a30}
ray start --head --redis-password {qpw}
az login --service-principal -u app -p {a30} --tenant t
requests.get(url, auth=('bob', '{qpw}'))
psycopg2.connect(host='db', user='bob', password='{qpw}')
boto3.client('s3', aws_secret_access_key='{b40}')
protocol=https\nhost=github.com\nusername=bob\npassword={a30}
https://bob:{a30}@github.com
//registry.npmjs.org/:_authToken={a30}
_auth=Ym9iO{a41}==
[pypi]\nusername = bob\npassword = {qpw}
[default]\naccess_key = x\nsecret_key = {b40}
[default]\naws_secret_access_key={b40}
{"Credentials": {"SecretAccessKey": "{b40}", "Expiration": "2026"}}
{"username":"bob","key":"{x32}"}
{"client_id": "x", "client_secret": "GOCSPX-{u28}", "type": "authorized_user"}
    http://gpu1:8888/lab?token={x48}
[Interface]\nPrivateKey = {b43}=\nAddress = 10.0.0.2/32
ssid=x\npsk={qpw}
snmpwalk -v2c -c {a30} switch1
ipmitool -I lanplus -H bmc1 -U root -P {qpw} chassis power cycle
IPMI_PASSWORD={qpw} ipmitool -E
Password for bob: {qpw}
wandb: Paste an API key from your profile and hit enter, or press ctrl+c to quit: {x40}
login: bob pw: {qpw}
credentials: bob / {qpw}
{"kty":"RSA","d":"{u342}","e":"AQAB"}
MUNGE_KEY={b43}=
etcdctl --user root:{qpw} get /
ldapsearch -D cn=admin -w {qpw} -b dc=x
<server><username>bob</username><password>{qpw}</password></server>
[s3]\ntype = s3\nsecret_access_key = {b40}
::set-output name=token::{a30}
::add-mask::{a30}
====== Data ======\nKey         Value\n---         -----\npassword    {qpw}
token                hvs.{u90}\ntoken_accessor       x
SAMLResponse={b267}=
{"token_type":"Bearer","expires_in":3599,"access_token":"0.A{u300}"}
{"device_code":"{a30}","user_code":"ABCD-EFGH"}
GET /callback?code=4/0A{u60}&state=xyz HTTP/1.1
keytool -importkeystore -storepass {qpw} -keystore k.jks
{\n  "auths": {\n    "nvcr.io": {\n      "auth": "JG9hdXRodG9rZW46bnZhcGkt{a54}=="\n    }\n  }\n}
apiVersion: v1\nusers:\n- name: dev\n  user:\n    token: {a40}
machine api.wandb.ai\n  login user\n  password {pw}
db-3.internal:5432:runs:etl:{pw}
//registry.npmjs.org/:_authToken={a36}
[pypi]\nusername = __token__\npassword = {pw}
Looking in indexes: https://ci:{a20}@pypi.example.com/simple
https://bot:{a40}@github.example.com
git -c http.extraheader="AUTHORIZATION: basic {a24}" fetch origin
ops:$apr1$9a8b7c6d${h22}
ops:$2y$10${h53}
svc:$6$kq8d7sJw${h86}:19700:0:99999:7:::
svc:$y$j9T$kq8d7sJwXz1${h43}:19700:0:99999:7:::
dn: cn=admin,dc=example,dc=com\nuserPassword:: {a24}
userPassword: {SSHA}{b40}
ldapsearch -x -D cn=admin,dc=example -w {pw} -b dc=example
sshpass -p '{pw}' ssh node3 hostname
mysql -h db3 -u etl -p{a14} runs
redis-cli -h cache-2 -a '{pw}' ping
mongosh --host db2 -u app -p '{pw}' runs
curl -u svc:{a16} https://api.example.com/v1
curl --user 'svc:{pw}' https://api.example.com/v1
wget --user=svc --password='{pw}' https://data.example.com/x.tar
docker login -u robot -p '{pw}' registry.example.com
echo '{pw}' | docker login -u robot --password-stdin registry.example.com
echo '{pw}' | sudo -S modprobe nvidia_peermem
huggingface-cli login --token {a37}
ngc config set --api-key {a60} --org nv
vault login s.{a24}
aws configure set aws_secret_access_key {b40} --profile train
az login --service-principal -u 1f2e -p {z40} --tenant t1
gcloud auth print-access-token\nya29.{u100}
kubectl --token={a60} get pods
openssl rsa -in k.pem -passin pass:{pw} -out o.pem
openssl enc -aes-256-cbc -k '{pw}' -in a -out b
gpg --batch --passphrase '{pw}' -d ckpt.gpg
7z x -p{pw} data.7z
ipmitool -I lanplus -H bmc7 -U ADMIN -P '{pw}' power status
mount -t cifs //nas/data /mnt -o username=svc,password={pw},vers=3.0
network={\n  ssid="lab"\n  psk={x64}\n}
    http://gpu-worker-6:8888/tree?token={x48}
tensorboard dev auth: refresh_token: 1//{u90}
scontrol token lifespan=600\nSLURM_JWT=eyJhbGciOiJIUzI1NiJ9.{u80}
MUNGE:AwQFAAC{b120}:
requests.get(url, auth=('svc', '{pw}'))
HTTPBasicAuth(username='svc', password='{pw}')
psycopg2.connect(host='db3', user='etl', password='{pw}')
CREATE USER etl WITH PASSWORD '{pw}';
GRANT ALL ON runs.* TO 'etl'@'%' IDENTIFIED BY '{pw}';
< Set-Cookie: session={u60}; Path=/; HttpOnly
Cookie: _ga=GA1.2; sid={a40}; theme=dark
<RequestsCookieJar[<Cookie sessionid={l32} for api.example.com/>]>
.example.com\tTRUE\t/\tTRUE\t1794705819\tsessionid\t{l32}
Authorization: Digest username="svc", realm="x", nonce="77", response="{x32}"
Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20261115/us-east-1/s3/aws4_request, SignedHeaders=host, Signature={x64}
authorization: token {x40}
authorization: ApiKey {a50}
{"access_token":"{a50}","token_type":"bearer","expires_in":3600}
{"refreshToken":"{u50}","scope":"all"}
grant_type=client_credentials&client_id=train&client_secret={a40}
{"device_code":"{a40}","user_code":"ABCD-EFGH"}
GET /callback?code={a40}&state=xyz HTTP/1.1
https://app.example.com/invite/accept?t={u43}
credentials loaded, 1 of 3: {a40}
{a48}
got response {u56} from auth server
decrypted: {b64}
Your recovery phrase is: {words}
{"mnemonic": "{words}"}
  File "/home/{user}/src/train.py", line 31, in main
loading /Users/{user}/models/llama
C:\\Users\\{user}\\AppData\\Local\\Temp\\x.log
checkpoint saved to /scratch/{user}/runs/17/step_100.pt
cache dir: /fsx/{user}/hf_cache/hub
writing /fsx/users/{user}/out.pt
/lustre/scratch/{user}/data/shard-001.tar opened
cwd=/gpfs/home/{user}/exp
/nfs/homes/{user}/.cache/torch exists
PYTHONPATH=/mnt/home/{user}/code:/usr/lib
/data/users/{user}/ckpt/latest
/checkpoint/{user}/job.out
/afs/cern.ch/user/a/{user}/public
/u/{user}/work/train.sh: line 3
/storage/home/{user}/venv/bin/python
/var/spool/mail/{user}: no such file
/tmp/torchinductor_{user}/fxgraph/ab
/tmp/ray_{user}/session_latest
sourcing ~{user}/.bashrc
s3://ml-bucket/users/{user}/run1/
hdfs:///user/{user}/data
{"user": "{user}", "host": "gpu-worker-6"}
ssh -o BatchMode=yes {user}@gpu-worker-6 nvidia-smi
rsync -a {user}@gpu-worker-7:/data/x /tmp/x
uid=1007({user}) gid=1007({user}) groups=1007({user}),27(sudo)
{user}:x:1007:1007:Some One:/home/{user}:/bin/bash
Default principal: {user}@EXAMPLE.COM
Ticket cache: FILE:/tmp/krb5cc_1007\nPrincipal: {user}@CORP.EXAMPLE.COM
docker run -v /home/{user}/data:/data train
file:///home/{user}/report.html
path=%2Fhome%2F{user}%2Fx
notify {mail}@example.com on failure
#SBATCH --mail-user={mail}@example.org
Author: A B <{mail}@example.com>
to={mail}%40example.com&subject=x
{"owner": "{mail}@corp.example.co.uk"}
Activated account [{mail}@ml-train.iam.gserviceaccount.com]
connecting to postgresql://bob:{qpw}@db.internal:5432/db?x=1
connecting to postgresql+psycopg2://bob:{qpw}@db.internal:5432/db?x=1
connecting to mysql+pymysql://bob:{qpw}@db.internal:5432/db?x=1
connecting to redis://bob:{qpw}@db.internal:5432/db?x=1
connecting to rediss://bob:{qpw}@db.internal:5432/db?x=1
connecting to mongodb+srv://bob:{qpw}@db.internal:5432/db?x=1
connecting to amqp://bob:{qpw}@db.internal:5432/db?x=1
connecting to amqps://bob:{qpw}@db.internal:5432/db?x=1
connecting to smtp://bob:{qpw}@db.internal:5432/db?x=1
connecting to ftp://bob:{qpw}@db.internal:5432/db?x=1
connecting to https://bob:{qpw}@db.internal:5432/db?x=1
connecting to sftp://bob:{qpw}@db.internal:5432/db?x=1
connecting to ldap://bob:{qpw}@db.internal:5432/db?x=1
connecting to clickhouse://bob:{qpw}@db.internal:5432/db?x=1
connecting to kafka://bob:{qpw}@db.internal:5432/db?x=1
connecting to nats://bob:{qpw}@db.internal:5432/db?x=1
connecting to s3://bob:{qpw}@db.internal:5432/db?x=1
connecting to socks5h://bob:{qpw}@db.internal:5432/db?x=1
broker redis://:{qpw}@db.internal:6379/0
postgres://bob:{qpw}@db.internal/db
next=postgres%3A%2F%2Ftrainer%3A{qpw}%40db.internal%2Fdb
jdbc:postgresql://db.internal/db?user=bob&password={qpw}&ssl=true
jdbc:sqlserver://db.internal;databaseName=x;user=bob;password={pw};
DRIVER={ODBC Driver 17};SERVER=db.internal;UID=bob;PWD={pw};Encrypt=yes
conninfo: host=db.internal port=5432 user=bob password={pw} dbname=x
psycopg2.connect("host=db.internal user=bob password='{pw}' dbname=x")
sqlplus bob/{a12}@db.internal:1521/orcl
https://hooks.slack.com/services/T{-U8}/B{-U8}/{a24}
https://b.s3.amazonaws.com/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA{U16}%2F20260101%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20260101T000000Z&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Signature={x64}
{\n  "Credentials": {\n    "AccessKeyId": "ASIA{U16}",\n    "SecretAccessKey": "{a32}",\n    "SessionToken": "{b700}"\n  }\n}
[default]\naws_access_key_id = AKIA{U16}\naws_secret_access_key = {b40}
db.internal:5432:db:bob:{pw}
users:\n- name: bob\n  user:\n    client-certificate-data: {b400}\n    client-key-data: {b1200}
apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\ndata:\n  tls.crt: {b268}\n  tls.key: {b400}
root:$6${-a16}${h86}:19000:0:99999:7:::
alice:$apr1${-a8}${h22}
jupyter password: argon2:$argon2id$v=19$m=10240,t=10,p=8${-b22}==${b43}=
mysql -utrainer -p{pw} -h db.internal
mysqldump -h db.internal -u bob -p'{pw}' db
sshpass -p '{pw}' ssh bob@db.internal
sshpass -p{pw} scp a db.internal:b
redis-cli -h db.internal -a {pw} ping
mongosh -u bob -p {pw} --host db.internal
kubeadm join 10.0.0.1:6443 --token {-l6}.{l16} --discovery-token-ca-cert-hash sha256:{-x64}
https://corp.webhook.office.com/webhookb2/{-uuid}@{-uuid}/IncomingWebhook/{x40}/{-uuid}
Engine(postgresql://bob:{qpw}@db.internal/x)
S3FileSystem(key='AKIA{U16}', secret='{x40}')
CLIENT_RANDOM {-x64} {x96}
boto3: using key ASIA{U16} from the environment
AKIAIOSFODNN7EXAMPL2 {b40}
GOOGLE_API: AIza{u35}
Authorization: Bearer ya29.{a60}
client secret {a3}8Q~{a34} expires soon
remote: https://x-access-token:ghs_{a36}@github.com/o/r.git
git config --global github.token github_pat_{a22}_{a59}
runner glrt-{a24} registered
huggingface_hub: token hf_{a34} is valid
key sk-proj-{a60} rejected
slack: posting with xoxb-{-d12}-{-d12}-{a24}
docker login nvcr.io: nvapi-{a64}
token was eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOi{a20}.{a43}
{'Authorization': 'Token {a30}'}
"password": "wi\\"th quotes{a6}"
args: {\\"password\\": \\"{a10}\\"}
  db_password: correct horse battery {a6}
"pin_password": {d8}
https://example.com/hook?access_token={a30}&x=1
password%3D{a10}
PASSWORD={a4}&{a4};{a4}
| db_password | {a10} |
the password is {a10} by the way
mailgun uses key-{x32} now
charge with sk_live_{a24}
host uses dapi{x32}
""".strip("\n").split("\n")
"""What redaction promises to find."""

BEYOND = r"""
-rw-r--r-- 1 {user} staff 123 Nov 15 10:00 train.py
drwxr-xr-x. 2 {user} {user} 4096 Nov 15 10:00 src
{user}@gpu-a017:~$ srun x
/tmp/{user}/nccl.log
-rw-r--r-- 1 {user} research 1024 Nov 15 00:00 ckpt.pt
{user}  81233 99.0  4.1 981234 712345 ?  Rl  03:57  12:01 python train.py
Accepted publickey for {user} from 10.0.0.7 port 51234 ssh2
             48121       gpu    train {user}  R    1:02:03      4 gpu-worker-[6-9]
JobID|User|State\n48121|{user}|RUNNING
   UserId={user}(1007) GroupId=research(2000) MCS_label=N/A
chown -R {user}:research /data/x
wandb: Currently logged in as: {user} (ml-team). Use `wandb login --relogin` to force relogin
{user}@gpu-worker-6:~$ torchrun train.py
(base) [{user}@gpu-worker-6 run]$ nvidia-smi
su - {user} -c 'python train.py'
({user}) CMD (/usr/bin/python sync.py)
{user}   pts/0        10.0.0.7         Sun Nov 15 00:00   still logged in
db.example.com:5432:prod:bob:{pw}
token is\nghp_{a14}\n{a22}\nnext line
WANDB_API_KEY={x20}\n{x20}\nnext line
token is\nghp_{a14}\n    {a22}\nnext line
WANDB_API_KEY={x20}\n    {x20}\nnext line
token is\nghp_{a14}\\\n{a22}\nnext line
WANDB_API_KEY={x20}\\\n{x20}\nnext line
seed words\n{words}
pam_unix(sshd:session): session opened for user {user}(uid=1007) by (uid=0)
sudo:  {user} : TTY=pts/0 ; PWD=/root ; USER=root ; COMMAND=/bin/ls
""".strip("\n").split("\n")
"""What nothing says to be secret but prose, a line above or a column: --all-lines does not promise to find these."""
"""Shapes as in `kinds`, with escapes as in `notations`."""

LABELS = ("RSA", "EC", "DSA", "OPENSSH", "ENCRYPTED", "PGP", "")


def private_keys(dice: Dice) -> Iterator[tuple[str, Made]]:
    """Every label, and one key in every layout in which logs, files and answers have it: (layout, key)."""
    for label in LABELS:
        lines, body = _key(dice, label)
        yield f"{label} file", Made("\n".join(lines), body)
    for layout in _LAYOUTS:
        lines, body = _key(dice, dice.random.choice(LABELS))
        yield layout, _laid_out(layout, lines, body)
    body = tuple(dice.text("b", 64) for _ in range(7))
    head = f"PuTTY-User-Key-File-3: ssh-rsa\nEncryption: none\nComment: k\nPrivate-Lines: {len(body)}\n"
    yield "putty", Made(head + "\n".join(body) + f"\nPrivate-MAC: {dice.text('x', 40)}", body)
    rows = [dice.fill("{b64pw}").text for _ in range(60)]
    many = "".join(f"  file{number}: {row}\n" for number, row in enumerate(rows))
    yield (
        "secret of many keys",
        Made(f"apiVersion: v1\ndata:\n{many}kind: Secret", tuple(row.rstrip("=") for row in rows)),
    )


def _key(dice: Dice, label: str) -> tuple[list[str], tuple[str, ...]]:
    body = (*(dice.text("b", 70 if label == "OPENSSH" else 64) for _ in range(8)), dice.text("b", 22) + "==")
    name = f"{label} PRIVATE KEY{' BLOCK' if label == 'PGP' else ''}".strip()
    return [f"-----BEGIN {name}-----", *body, f"-----END {name}-----"], body


_LAYOUTS = (
    "json", "json in json", "repr", "repr of bytes", "service account", "service account, pretty", "prefixed", "cri prefixed",
    "coloured", "yaml", "yaml, deeper", "diff", "encrypted", "one line", "spaces", "without its first line",
    "without three lines", "without its last line", "middle alone", "base64", "kubeconfig",
)  # fmt: skip


def _laid_out(layout: str, lines: list[str], body: tuple[str, ...]) -> Made:
    text = "\n".join(lines)
    account = {"type": "service_account", "private_key_id": "0" * 40, "private_key": f"{text}\n", "client_id": "1"}
    coded = base64.b64encode(text.encode()).decode()
    prefix = {
        "prefixed": "[rank3]: ",
        "cri prefixed": "2026-01-02T03:04:05.6Z stdout F ",
        "coloured": "\x1b[2m",
        "diff": "+",
    }
    if layout in prefix:
        return Made("\n".join(prefix[layout] + line for line in lines), body)
    if layout in ("base64", "kubeconfig"):
        front = "data " if layout == "base64" else "users:\n- name: admin\n  user:\n    client-key-data: "
        return Made(front + coded, (coded[40:-40],))
    made = {
        "json": json.dumps({"msg": "loaded", "pem": text}),
        "json in json": json.dumps({"e": json.dumps({"private_key": text})}),
        "repr": f"key = {text!r}",
        "repr of bytes": f"cert={text.encode()!r}",
        "service account": json.dumps(account),
        "service account, pretty": json.dumps(account, indent=2),
        "yaml": "tls.key: |\n" + "\n".join(f"  {line}" for line in lines),
        "yaml, deeper": "tls:\n  key: |\n" + "\n".join(f"    {line}" for line in lines),
        "encrypted": "\n".join([lines[0], "Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,00FF", "", *lines[1:]]),
        "one line": f"{lines[0]} {''.join(body)} {lines[-1]}",
        "spaces": " ".join(lines),
        "without its first line": "\n".join(lines[1:]),
        "without three lines": "\n".join(["... (truncated)", *lines[3:]]),
        "without its last line": "\n".join([*lines[:-1], "step 1 loss 2.3"]),
        "middle alone": "\n".join(lines[3:8]),
    }[layout]
    return Made(made, tuple(line for line in body if line in made))


def whole_texts(dice: Dice) -> Iterator[tuple[str, Made]]:
    """(what it is, the text) of every one."""
    for row in (*TEXTS, *BEYOND):
        yield row, dice.fill(unescaped(row))
    yield from private_keys(dice)
